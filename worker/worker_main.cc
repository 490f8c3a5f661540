#include "worker/worker_main.h"

#include <grpcpp/grpcpp.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/cpus.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "worker/choose_device.h"
#include "worker/comm/nccl_api.h"
#include "worker/coordinator_link.h"
#include "worker/flag_names.h"
#include "worker/leave_signal.h"
#include "worker/listen_address.h"
#include "worker/worker_service.h"

ABSL_FLAG(std::string, coordinator, "", "where the coordinator listens for workers: host:port or unix:/path");
ABSL_FLAG(std::string, listen, "",
          "where this worker listens: host:port or unix:/path; by default a socket beside the coordinator's, "
          "or a free "
          "port on the address that leads to it");
ABSL_FLAG(std::string, host, "", "name or address under which the coordinator reaches this worker");
ABSL_FLAG(int, rank, -1, "preferred rank; -1: any");
ABSL_FLAG(int, threads, 0, "CPU threads; 0: this process's CPUs, shared evenly by the ranks");
ABSL_FLAG(int, first_cpu, -1, "pin thread i to the (first_cpu + i)-th allowed CPU; -1: do not pin");
ABSL_FLAG(std::string, device, "auto", "auto, cpu or cuda");
ABSL_FLAG(int, device_index, 0, "which GPU");
ABSL_FLAG(int, device_chunk_mib, 1024,
          "MiB that a GPU's memory is created and released by; fewer, larger chunks sleep and wake faster");
ABSL_FLAG(double, memory_utilization, 0,
          "on a GPU, the share of its memory that the worker may take (0.9); on a host, the share of the "
          "free memory "
          "that the KV cache may take, over all ranks (0.5)");
ABSL_FLAG(bool, enforce_eager, false, "no CUDA graphs");
ABSL_FLAG(std::vector<std::string>, graph_sizes, {},
          "batch sizes that get CUDA graphs; 1,2,4,8,16,24,... by default");
ABSL_FLAG(double, max_tune_seconds, 5, "for measuring a GPU's ways of multiplying matrices at the start");
ABSL_FLAG(std::string, spawn_token, "",
          "shows the coordinator that it started this worker itself; better given as SOMNUS_SPAWN_TOKEN. "
          "Such a worker "
          "leaves with its parent and at once on SIGTERM");
ABSL_FLAG(std::string, log_level, "info", "debug, info, warning or error");
ABSL_FLAG(double, heartbeat_interval_s, 0, "0: what the coordinator asks for");
ABSL_FLAG(double, register_timeout_s, 300, "how long to wait for a coordinator that is not there yet");
ABSL_FLAG(double, orphan_grace_s, 30, "leave when the coordinator has not answered for so long");
ABSL_FLAG(double, term_grace_s, 30,
          "after SIGTERM, how long to wait for the coordinator to send this worker away: cluster managers "
          "signal both at "
          "once, and the coordinator still drains");
ABSL_FLAG(int, nice, 0, "added to the process's niceness");

namespace somnus {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;
// The device may be deep in a step or a load when the worker has to go.
constexpr absl::Duration kExitPatience = absl::Seconds(2);

constexpr int kExitUsage = 2;

std::string SpawnToken() {
  if (const std::string flag = absl::GetFlag(FLAGS_spawn_token); !flag.empty()) return flag;
  const char* value = getenv("SOMNUS_SPAWN_TOKEN");
  return value == nullptr ? "" : value;
}

// By the coordinator itself, which ends it by SIGTERM; others get that signal from a cluster manager.
bool WasSpawned() { return !SpawnToken().empty(); }

absl::Status CheckFlags() {
  const std::string device = absl::GetFlag(FLAGS_device);
  if (absl::GetFlag(FLAGS_coordinator).empty()) {
    return absl::InvalidArgumentError("--coordinator=host:port or unix:/path is required");
  }
  if (device != "auto" && device != "cpu" && device != "cuda") {
    return absl::InvalidArgumentError(absl::StrCat("--device: '", device, "' is not one of auto, cpu, cuda"));
  }
  const double utilization = absl::GetFlag(FLAGS_memory_utilization);
  if (!(utilization >= 0 && utilization <= 1)) {
    return absl::InvalidArgumentError("--memory_utilization: 0 (chosen) to 1 is wanted");
  }
  if (const double seconds = absl::GetFlag(FLAGS_max_tune_seconds); !(seconds >= 0 && seconds <= 1e7)) {
    return absl::InvalidArgumentError("--max_tune_seconds: 0 to 1e7 are wanted");
  }
  for (const std::string& size : absl::GetFlag(FLAGS_graph_sizes)) {
    int32_t number;
    if (!absl::SimpleAtoi(size, &number) || number < 1 || number > 4096)
      return absl::InvalidArgumentError(absl::StrCat("--graph_sizes: '", size, "' is not a batch size"));
  }
  if (const int mib = absl::GetFlag(FLAGS_device_chunk_mib); mib < 2 || mib > 1 << 20) {
    return absl::InvalidArgumentError("--device_chunk_mib: 2 to 1048576 are wanted");
  }
  if (absl::GetFlag(FLAGS_threads) < 0 || absl::GetFlag(FLAGS_threads) > 1024) {
    return absl::InvalidArgumentError("--threads: 0 to 1024 are wanted");
  }
  return absl::OkStatus();
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

absl::StatusOr<ChosenDevice> ChooseByFlags(const WorkerParts& parts) {
  ASSIGN_OR_RETURN(ChosenDevice device,
                   ChooseDevice(parts, absl::GetFlag(FLAGS_device), absl::GetFlag(FLAGS_device_index)));
  const std::string reason(device.no_gpu.message());
  if (absl::IsFailedPrecondition(device.no_gpu)) {
    LogWarning("{}: --device=auto takes the CPU", reason);
  } else if (!device.no_gpu.ok()) {
    LogDebug("{}: --device=auto takes the CPU", reason);
  }
  return device;
}

v1::RegisterRequest MakeRegisterRequest(const std::string& address, const ChosenDevice& device) {
  v1::RegisterRequest request;
  std::random_device random;
  request.set_host(HostName());
  request.set_pid(getpid());
  request.set_worker_id(
      absl::StrCat(request.host(), "-", getpid(), "-", absl::Hex(random(), absl::kZeroPad8)));
  request.set_address(address);
  const bool cuda = device.kind == DeviceKind::kCuda;
  request.set_device_type(cuda ? v1::DEVICE_TYPE_CUDA : v1::DEVICE_TYPE_CPU);
  if (cuda) request.set_device_index(absl::GetFlag(FLAGS_device_index));
  request.set_device_memory_bytes(device.memory_bytes);
  const int threads = absl::GetFlag(FLAGS_threads);
  request.set_num_threads(threads > 0 ? threads : NumAllowedCpus());
  if (const int rank = absl::GetFlag(FLAGS_rank); rank >= 0) request.set_preferred_rank(rank);
  request.set_version(kVersion);
  request.set_spawn_token(SpawnToken());
  return request;
}

std::unique_ptr<grpc::Server> StartServer(const ListenAddress& address, grpc::Service* service, int* port) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address.bind(), grpc::InsecureServerCredentials(), port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  // One coordinator: a step stream, a lifecycle call, a status call.
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 2);
  builder.RegisterService(service);
  return builder.BuildAndStart();
}

CoordinatorLinkOptions LinkOptions() {
  CoordinatorLinkOptions options;
  options.coordinator = absl::GetFlag(FLAGS_coordinator);
  options.register_timeout = absl::Seconds(absl::GetFlag(FLAGS_register_timeout_s));
  options.orphan_grace = absl::Seconds(absl::GetFlag(FLAGS_orphan_grace_s));
  options.heartbeat_interval = absl::Seconds(absl::GetFlag(FLAGS_heartbeat_interval_s));
  return options;
}

void ReportLeaving(const LeaveSignal::Reason& reason) {
  if (reason.exit_code == 0) {
    LogInfo("leaving: {}", reason.text);
  } else {
    LogError("leaving: {}", reason.text);
  }
}

// Everything between a good command line and the exit code.
absl::StatusOr<int> Run(LeaveSignal* leave, const WorkerParts& parts) {
  ASSIGN_OR_RETURN(const ChosenDevice device, ChooseByFlags(parts));
  WorkerOptions options = {.device = device.kind,
                           .device_index = absl::GetFlag(FLAGS_device_index),
                           .device_chunk_bytes = int64_t{absl::GetFlag(FLAGS_device_chunk_mib)} << 20,
                           .num_threads = absl::GetFlag(FLAGS_threads),
                           .first_cpu = absl::GetFlag(FLAGS_first_cpu),
                           .memory_utilization = absl::GetFlag(FLAGS_memory_utilization),
                           .enforce_eager = absl::GetFlag(FLAGS_enforce_eager),
                           .max_tune_seconds = absl::GetFlag(FLAGS_max_tune_seconds)};
  for (const std::string& size : absl::GetFlag(FLAGS_graph_sizes))
    options.graph_sizes.push_back(std::stoi(size));
  Worker worker(options, parts);
  const auto service = MakeWorkerService(&worker, [leave] { leave->Leave(0, "the coordinator said so"); });
  int port = 0;
  ASSIGN_OR_RETURN(ListenAddress address,
                   ListenAddress::Choose(absl::GetFlag(FLAGS_coordinator), absl::GetFlag(FLAGS_listen)));
  const std::unique_ptr<grpc::Server> server = StartServer(address, service.get(), &port);
  if (server == nullptr) return absl::UnavailableError(absl::StrCat("cannot listen on ", address.bind()));

  const std::unique_ptr<CoordinatorLink> link = CoordinatorLink::Create(LinkOptions());
  const v1::RegisterRequest request =
      MakeRegisterRequest(address.Advertised(port, absl::GetFlag(FLAGS_host)), device);
  std::thread registration([&] {
    if (absl::Status status = link->Register(request); !status.ok()) {
      leave->Leave(1, std::string(status.message()));
      return;
    }
    LogDebug("registered as {} at {}", request.worker_id(), request.address());
    if (!WasSpawned()) leave->WaitAfterTerm(absl::Seconds(absl::GetFlag(FLAGS_term_grace_s)));
    link->StartHeartbeats(
        [&worker](v1::HeartbeatRequest* beat) {
          beat->set_last_step_id(worker.last_step_id());
          beat->set_step_in_progress(worker.step_in_progress());
        },
        [leave](const absl::Status& status) {
          leave->Leave(status.ok() ? 0 : 1, status.ok()
                                                ? "the coordinator does not know this worker any longer"
                                                : std::string(status.message()));
        });
  });

  const LeaveSignal::Reason reason = leave->Wait();
  ReportLeaving(reason);
  link->Stop();
  registration.join();
  worker.Abort(absl::StrCat("rank leaves: ", reason.text));
  const bool idle = worker.WaitIdle(kExitPatience);
  server->Shutdown(absl::ToChronoTime(absl::Now() + absl::Milliseconds(idle ? 200 : 0)));
  // A device that does not come back cannot be waited for; the system takes everything it held.
  if (!idle) {
    LogWarning("the device is still busy: leaving without it");
    { const ListenAddress removed = std::move(address); }
    _exit(reason.exit_code);
  }
  return reason.exit_code;
}

}  // namespace

int WorkerMain(int argc, char** argv, const WorkerParts& parts) {
  SetNcclEnvironment();  // there are no threads yet
  std::vector<std::string> storage;
  std::vector<char*> normal = NormalizeFlagNames(argc, argv, &storage);
  absl::SetProgramUsageMessage("worker --coordinator=host:port [flags]: one rank of a Somnus model.");
  const std::vector<char*> rest = absl::ParseCommandLine(static_cast<int>(normal.size()) - 1, normal.data());
  const auto complain = [](absl::string_view text) {
    std::fprintf(stderr, "worker: %.*s\n", static_cast<int>(text.size()), text.data());
    return kExitUsage;
  };
  if (rest.size() > 1) return complain(absl::StrCat("unexpected argument '", rest[1], "'"));
  if (absl::Status status = CheckFlags(); !status.ok()) return complain(status.message());
  const int rank = absl::GetFlag(FLAGS_rank);
  const std::string name = rank < 0 ? "worker" : absl::StrCat("worker ", rank);
  if (absl::Status status = InitLogging(name, absl::GetFlag(FLAGS_log_level)); !status.ok()) {
    return complain(status.message());
  }
  if (const int nice = absl::GetFlag(FLAGS_nice); nice != 0) setpriority(PRIO_PROCESS, 0, nice);

  LeaveSignal leave(WasSpawned() ? getppid() : 0);
  const absl::StatusOr<int> code = Run(&leave, parts);
  if (code.ok()) return *code;
  LogError("{}", std::string(code.status().message()));
  return 1;
}

}  // namespace somnus
