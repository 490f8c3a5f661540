#include "worker/worker_main.h"

#include <grpcpp/grpcpp.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/build_id.h"
#include "base/cpus.h"
#include "base/descriptors.h"
#include "base/discovery.h"
#include "base/freed_memory.h"
#include "base/heartbeat.h"
#include "base/last_words.h"
#include "base/log.h"
#include "base/log_writer.h"
#include "base/monotonic.h"
#include "base/numa.h"
#include "base/service_manager.h"
#include "base/start_limits.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "proto/cluster_trust.h"
#include "proto/grpc_listener.h"
#include "proto/limits.h"
#include "worker/choose_device.h"
#include "worker/comm/nccl_api.h"
#include "worker/coordinator_link.h"
#include "worker/leave_signal.h"
#include "worker/listen_address.h"
#include "worker/update_port.h"
#include "worker/worker_flags.h"
#include "worker/worker_health.h"
#include "worker/worker_service.h"

namespace somnus {
namespace {

// A heartbeat takes less than half of it, even when the coordinator does not reply.
constexpr absl::Duration kLongestBeat = absl::Seconds(15);
// How long a leaving worker waits for its device, which may be in the middle of a step or a load.
constexpr absl::Duration kExitPatience = absl::Seconds(2);

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

absl::StatusOr<ChosenDevice> ChooseByFlags(const WorkerParts& parts, const WorkerFlags& flags) {
  ASSIGN_OR_RETURN(ChosenDevice device, ChooseDevice(parts, flags.device, flags.device_index.value_or(0)));
  const std::string reason(device.no_gpu.message());
  if (absl::IsFailedPrecondition(device.no_gpu)) {
    LogWarning("{}: --device=auto takes the CPU", reason);
  } else if (!device.no_gpu.ok()) {
    LogDebug("{}: --device=auto takes the CPU", reason);
  }
  return device;
}

v1::RegisterRequest MakeRegisterRequest(const std::string& address, const ChosenDevice& device,
                                        const WorkerFlags& flags) {
  v1::RegisterRequest request;
  std::random_device random;
  request.set_host(HostName());
  request.set_pid(getpid());
  request.set_worker_id(
      absl::StrCat(request.host(), "-", getpid(), "-", absl::Hex(random(), absl::kZeroPad8)));
  request.set_address(address);
  const bool cuda = device.kind == DeviceKind::kCuda;
  request.set_device_type(cuda ? v1::DEVICE_TYPE_CUDA : v1::DEVICE_TYPE_CPU);
  if (cuda) request.set_device_index(flags.device_index.value_or(0));
  request.set_device_memory_bytes(device.memory_bytes);
  if (flags.rank.has_value()) request.set_preferred_rank(*flags.rank);
  request.set_version(kVersion);
  request.set_build_id(BuildId());
  // Whether the worker runs on its CPU is the coordinator's to say; a wrong SOMNUS_CPU_ISA is LoadModel's
  // error.
  request.set_cpu_isa(ChosenCpuIsaName().value_or(""));
  request.set_cpus(CpuListText(AllowedCpus()));
  return request;
}

absl::StatusOr<std::unique_ptr<GrpcListener>> StartServer(const ListenAddress& address,
                                                          const ClusterTrust& trust, grpc::Service* service) {
  RETURN_IF_ERROR(trust.CheckListen(address.bind()));
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxWorkerMessageBytes);
  builder.SetMaxSendMessageSize(kMaxWorkerMessageBytes);
  // There is one coordinator, with one step stream, one lifecycle call and one status call at a time.
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 2);
  builder.RegisterService(service);
  return GrpcListener::Start(address.bind(), DescriptorUse::kWorkers, trust.Listener(address.bind()),
                             &builder, trust.max_handshakes());
}

CoordinatorLinkOptions LinkOptions(const WorkerFlags& flags, const ClusterTrust& trust) {
  CoordinatorLinkOptions options;
  options.trust = trust;
  options.coordinator = flags.coordinator;
  options.register_timeout = flags.register_timeout;
  options.worker_grace = flags.worker_grace.value_or(options.worker_grace);
  options.heartbeat_interval = flags.heartbeat_interval;
  return options;
}

void ReportLeaving(const LeaveSignal::Reason& reason) {
  if (reason.exit_code == 0) {
    LogInfo("leaving: {}", reason.text);
  } else {
    LogError("leaving: {}", reason.text);
  }
}

// When the last heartbeat was sent. Thread safe.
class LastBeat {
 public:
  void Note() { ms_ = NowMs(); }
  bool IsRecent() const { return NowMs() - ms_ < absl::ToInt64Milliseconds(kLongestBeat); }

 private:
  static int64_t NowMs() { return absl::ToInt64Milliseconds(MonotonicNow()); }

  std::atomic<int64_t> ms_{NowMs()};
};

CoordinatorLink::Refresh TellWhatIsHeld(const Worker* worker) {
  return [worker](v1::RegisterRequest* request) {
    *request->mutable_snapshot() = worker->Snapshot();
    // Weights are of a rank.
    if (request->snapshot().weights_version() > 0) request->set_preferred_rank(request->snapshot().rank());
  };
}

WorkerOptions OptionsOf(const WorkerFlags& flags, const ChosenDevice& device) {
  return {.device = device.kind,
          .device_is_fixed = flags.device != "auto",
          .device_index = flags.device_index.value_or(0),
          .num_threads = flags.threads,
          // Each of a coordinator's own workers has CPUs of its own; an operator who starts workers by hand
          // says so. A quota gives CPUs to nobody.
          .pins = flags.spawned_by.has_value() && !HasCpuQuota(),
          .first_cpu = flags.first_cpu,
          .numa = flags.numa,
          .step_timeout = flags.step_timeout};
}

// Counted at a worker that serves, with a reserve and a trainer's connection; a GPU's driver and a checkpoint
// of many files need more.
StartNeeds NeedsOf(const WorkerFlags& flags) {
  return {
      .descriptors = LeastDescriptors(24), .threads = 20 + flags.threads, .address_bytes = int64_t{5} << 28};
}

// Everything between a good command line and the exit code.
absl::StatusOr<int> Run(const WorkerFlags& flags, LeaveSignal* leave, ServiceManager* manager,
                        const WorkerParts& parts) {
  ASSIGN_OR_RETURN(const ChosenDevice device, ChooseByFlags(parts, flags));
  Heartbeats::OfProcess().Watch(flags.liveness_timeout);
  WorkerHealth::Enable();
  Worker worker(OptionsOf(flags, device), parts);
  ASSIGN_OR_RETURN(ListenAddress address, ListenAddress::Choose(flags.coordinator, flags.listen));
  const auto service = MakeWorkerService(
      &worker, [leave] { leave->Leave(0, "the coordinator said so"); },
      UpdatePortsBeside(&address, flags.host));
  ASSIGN_OR_RETURN(const ClusterTrust trust, ClusterTrust::Create(flags.trust));
  ASSIGN_OR_RETURN(const std::unique_ptr<GrpcListener> listener, StartServer(address, trust, service.get()));
  ASSIGN_OR_RETURN(const auto health, WorkerHealth::Start(listener.get(), flags.health_listen,
                                                          trust.max_handshakes(), &Heartbeats::OfProcess()));

  const std::unique_ptr<CoordinatorLink> link = CoordinatorLink::Create(LinkOptions(flags, trust));
  const v1::RegisterRequest request =
      MakeRegisterRequest(address.Advertised(listener->port(), flags.host), device, flags);
  std::thread registration([&] {
    if (absl::Status status = link->Register(request); !status.ok()) {
      TellError(absl::UnavailableError(status.message()));  // a later worker may find a place
      leave->Leave(1, std::string(status.message()));
      return;
    }
    LogDebug("registered as {} at {}", request.worker_id(), request.address());
    if (!flags.spawned_by.has_value()) leave->WaitAfterTerm(flags.term_grace);
    // Until here nobody but its parent knows of a spawned worker.
    if (flags.worker_grace.has_value()) leave->StopWatchingParent();
    manager->Ready(absl::StrCat("registered at ", flags.coordinator));
    const auto last_beat = std::make_shared<LastBeat>();
    manager->Watch([last_beat] { return last_beat->IsRecent() && Heartbeats::OfProcess().Check().ok(); });
    link->StartHeartbeats(
        [&worker, last_beat](v1::HeartbeatRequest* beat) {
          last_beat->Note();
          beat->set_last_step_id(worker.last_step_id());
          beat->set_step_in_progress(worker.step_in_progress());
          beat->set_group_epoch(worker.group_epoch());
        },
        TellWhatIsHeld(&worker),
        // Not 0, so that the program that started this worker starts another worker.
        [leave](const absl::Status& status) { leave->Leave(1, std::string(status.message())); });
  });

  const LeaveSignal::Reason reason = leave->Wait();
  ReportLeaving(reason);
  manager->Stopping();
  link->Stop();
  registration.join();
  worker.Abort(absl::StrCat("rank leaves: ", reason.text));
  const bool idle = worker.WaitIdle(kExitPatience);
  // There is no use in waiting for a device or for files that hang, and the listener would wait for their
  // calls; the system frees everything that the process held.
  if (!idle) {
    LogWarning("the device is still busy, or files are still being read: leaving without them");
    { const ListenAddress removed = std::move(address); }
    (void)LogWriter::OfProcess()->Flush(absl::Seconds(1));
    _exit(reason.exit_code);
  }
  listener->Shutdown(absl::ToChronoTime(absl::Now() + absl::Milliseconds(200)));
  return reason.exit_code;
}

}  // namespace

int WorkerMain(int argc, char** argv, const WorkerParts& parts) {
  SetNcclEnvironment();  // there are no threads yet
  ReturnLargeBlocks();
  // gRPC's own log repeats what our errors say, and reports as an error that no certificate has the name by
  // which the coordinator dials, which is an address and is not compared (proto/tls.h).
  setenv("GRPC_VERBOSITY", "NONE", 0);
  WorkerFlags flags;
  const FlagTable table = WorkerFlagTable(&flags);
  if (const auto code = ParseCommandLine(table, argc, argv); code.has_value()) return *code;
  const Environment environment = ProcessEnvironment();
  if (absl::Status status = ReadClusterSecret(environment, &flags.trust); !status.ok()) {
    return UsageError(table, status);
  }
  // A worker that the coordinator started was told its place; the environment is the coordinator's own.
  const absl::StatusOr<Discovery> found =
      FillFromEnvironment(flags.spawned_by.has_value() ? Environment() : environment, &flags);
  if (!found.ok()) return UsageError(table, found.status());
  const std::string name = absl::StrCat(flags.log_name, flags.log_name.empty() ? "" : ": ", "worker",
                                        flags.rank.has_value() ? absl::StrCat(" ", *flags.rank) : "");
  if (absl::Status status = CheckStartLimits(NeedsOf(flags)); !status.ok()) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), std::string(status.message()).c_str());
    TellError(status);
    return 1;
  }
  if (absl::Status status = InitLogging(name, flags.log_level, flags.log_queue_bytes); !status.ok())
    return UsageError(table, status);
  if (const std::string place = DescribeDiscovery(*found); !place.empty()) LogInfo("{}", place);
  if (flags.nice != 0) setpriority(PRIO_PROCESS, 0, flags.nice);

  const std::unique_ptr<ServiceManager> manager = ServiceManager::TakeFromEnvironment();
  LeaveSignal leave(flags.spawned_by.value_or(0));
  TellCpuIsa(ChosenCpuIsaName().value_or(""));
  const absl::StatusOr<int> code = Run(flags, &leave, manager.get(), parts);
  if (code.ok()) return *code;
  LogError("{}", std::string(code.status().message()));
  TellError(code.status());
  return 1;
}

}  // namespace somnus
