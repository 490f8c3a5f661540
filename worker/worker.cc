#include "worker/worker.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/cuda_vmm_driver.h"
#include "allocator/host_vmm_driver.h"
#include "base/cpus.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/request_bounds.h"
#include "base/status_macros.h"
#include "kernels/cuda/check.h"
#include "worker/comm/cuda_communicator.h"
#include "worker/comm/nccl_api.h"
#include "worker/kv_memory.h"

namespace somnus {
namespace {

int64_t ResidentSetBytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  long long size = 0, resident = 0;
  const int fields = std::fscanf(file, "%lld %lld", &size, &resident);
  std::fclose(file);
  return fields == 2 ? resident * sysconf(_SC_PAGESIZE) : 0;
}

LoadFormat FormatOf(const v1::LoadModelRequest& request) {
  return request.load_format() == v1::LOAD_FORMAT_DUMMY ? LoadFormat::kDummy : LoadFormat::kAuto;
}

// Threads that wait for each other may spin only where each has a CPU of its own.
bool SpinningPays(const LoadOptions& options) {
  return options.num_threads * options.ranks_on_host <= NumAllowedCpus();
}

bool AllResident(const Worker::BytesByTag& resident) {
  return std::all_of(resident.begin(), resident.end(), [](const auto& tag) { return tag.second > 0; });
}

}  // namespace

const char* WorkerStateName(WorkerState state) {
  switch (state) {
    case WorkerState::kCreated:
      return "created";
    case WorkerState::kLoaded:
      return "loaded";
    case WorkerState::kAwake:
      return "awake";
    case WorkerState::kAsleep:
      return "asleep";
    case WorkerState::kFailed:
      return "failed";
  }
  return "";
}

WorkerParts RealWorkerParts() {
  WorkerParts parts;
  parts.check_device = [](const WorkerOptions& options) {
    return options.device == DeviceKind::kCpu ? absl::OkStatus() : CheckCudaDevice(options.device_index);
  };
  parts.open_device = [](const WorkerOptions& options, const CpuDeviceOptions& cpu) {
    return options.device == DeviceKind::kCpu ? Device::CreateCpu(cpu)
                                              : Device::CreateCuda(options.device_index);
  };
  parts.open_memory = [](const WorkerOptions& options,
                         int num_threads) -> absl::StatusOr<std::unique_ptr<VmmDriver>> {
    if (options.device == DeviceKind::kCpu) return MakeHostVmmDriver({.num_threads = num_threads});
    return MakeCudaVmmDriver(options.device_index, {.chunk_bytes = options.device_chunk_bytes});
  };
  parts.join_devices = MakeCudaCommunicator;
  parts.open_checkpoint = Checkpoint::Open;
  parts.load_runner = ModelRunner::Load;
  return parts;
}

Worker::Worker(const WorkerOptions& options, WorkerParts parts)
    : options_(options), parts_(std::move(parts)) {}

Worker::~Worker() {
  Abort("the worker leaves");
  thread_.Run([this] { runner_.reset(); });  // before the device and the memory that it borrows
}

// Runs `work` on the runner thread and returns its result.
template <typename Result>
Result Worker::OnRunner(const std::function<Result()>& work) {
  std::optional<Result> result;
  thread_.Run([&] { result.emplace(work()); });
  return *std::move(result);
}

// Needs no device, and therefore not the runner thread: the coordinator calls it before LoadModel.
absl::StatusOr<std::string> Worker::NewGroup() {
  absl::StatusOr<const NcclApi*> nccl = NcclApi::Load();
  if (nccl.ok()) return MakeNcclUniqueId(**nccl);
  LogWarning("{}", std::string(nccl.status().message()));
  return std::string();
}

absl::StatusOr<v1::LoadModelEvent> Worker::LoadModel(const v1::LoadModelRequest& request,
                                                     const ModelRunner::Progress& progress) {
  return OnRunner<absl::StatusOr<v1::LoadModelEvent>>([&]() -> absl::StatusOr<v1::LoadModelEvent> {
    RETURN_IF_ERROR(RequireState({WorkerState::kCreated}, "LoadModel"));
    absl::StatusOr<v1::LoadModelEvent> event = DoLoad(request, progress);
    if (!event.ok()) return Fail(event.status());
    SetState(WorkerState::kLoaded);
    return event;
  });
}

absl::StatusOr<int64_t> Worker::AllocateKvCache(const v1::KvCacheConfig& config) {
  return OnRunner<absl::StatusOr<int64_t>>([&] { return DoAllocateKvCache(config); });
}

void Worker::ExecuteAsync(v1::StepRequest request, std::function<void(AwaitReply)> launched) {
  thread_.Post([this, request = std::move(request), launched = std::move(launched)] {
    ++steps_in_progress_;
    last_step_id_ = request.step_id();
    // Shared, because functions are copied.
    const auto step = std::make_shared<absl::StatusOr<std::unique_ptr<PendingStep>>>(DoLaunch(request));
    launched([this, step, id = request.step_id()] {
      absl::StatusOr<v1::StepReply> result = step->ok() ? (**step)->Wait() : step->status();
      if (step->ok() && !result.ok()) Fail(result.status()).IgnoreError();
      v1::StepReply reply = result.ok() ? *std::move(result) : v1::StepReply();
      --steps_in_progress_;
      reply.set_step_id(id);
      reply.set_error_code(result.status().raw_code());
      reply.set_error_message(std::string(result.status().message()));
      return reply;
    });
  });
}

absl::StatusOr<Worker::BytesByTag> Worker::Sleep(int level) {
  return OnRunner<absl::StatusOr<BytesByTag>>([&] { return DoSleep(level); });
}

absl::StatusOr<Worker::BytesByTag> Worker::WakeUp(const std::vector<std::string>& tags) {
  return OnRunner<absl::StatusOr<BytesByTag>>([&] { return DoWakeUp(tags); });
}

v1::WorkerStatusResponse Worker::GetStatus() const {
  v1::WorkerStatusResponse response;
  std::shared_ptr<SleepableAllocator> allocator;
  {
    absl::MutexLock lock(&mu_);
    response.set_state(WorkerStateName(state_));
    response.set_sleep_level(sleep_level_);
    allocator = allocator_;
  }
  response.set_rss_bytes(ResidentSetBytes());
  response.set_graph_bytes(graph_bytes_.load());
  if (allocator != nullptr) {
    for (const auto& [tag, bytes] : allocator->ResidentBytes())
      (*response.mutable_bytes_by_tag())[tag] = bytes;
  }
  return response;
}

void Worker::Abort(const std::string& reason) {
  std::shared_ptr<Communicator> communicator;
  {
    absl::MutexLock lock(&mu_);
    if (abort_reason_.empty()) abort_reason_ = reason;
    communicator = communicator_;
  }
  if (communicator != nullptr) communicator->Abort(reason);
}

absl::StatusOr<v1::LoadModelEvent> Worker::DoLoad(const v1::LoadModelRequest& request,
                                                  const ModelRunner::Progress& progress) {
  ASSIGN_OR_RETURN(load_options_, MakeLoadOptions(request, options_));
  load_request_ = request;
  // What can fail on this rank alone comes first, so that no peer waits for a rank that cannot come.
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                   parts_.open_checkpoint(request.model_path(), FormatOf(request)));
  RETURN_IF_ERROR(OpenDevice(request.batch_invariant()));
  RETURN_IF_ERROR(JoinGroup(request));
  ASSIGN_OR_RETURN(runner_, parts_.load_runner(*checkpoint, load_options_.runner, device_.get(),
                                               communicator_.get(), allocator_.get(), progress));
  v1::LoadModelEvent event;
  ASSIGN_OR_RETURN(const KvMemory memory,
                   MeasureKvMemory(load_options_, runner_.get(), communicator_.get(), driver_.get()));
  graph_bytes_ = memory.graph_bytes;
  event.set_done(true);
  event.set_weights_bytes(allocator_->ResidentBytes()[kWeightsTag]);
  event.set_bytes_loaded(event.weights_bytes());
  event.set_bytes_total(event.weights_bytes());
  event.set_kv_block_bytes(runner_->kv_block_bytes());
  event.set_available_kv_cache_memory_bytes(memory.available_bytes);
  event.set_graph_bytes(memory.graph_bytes);
  event.set_graph_capture_us(static_cast<int64_t>(memory.graph_seconds * 1e6));
  return event;
}

absl::Status Worker::OpenDevice(bool batch_invariant) {
  WorkerOptions worker = options_;
  worker.device = load_options_.device;
  worker.device_chunk_bytes = load_options_.device_chunk_bytes;
  CpuDeviceOptions options;
  options.num_threads = load_options_.num_threads;
  options.first_cpu = options_.first_cpu;
  options.spin = SpinningPays(load_options_);
  ASSIGN_OR_RETURN(device_, parts_.open_device(worker, options));
  device_->SetBatchInvariant(batch_invariant);
  LogInfo("runs on {}", device_->Describe());
  ASSIGN_OR_RETURN(driver_, parts_.open_memory(worker, options.num_threads));
  // On a host the backup takes the same memory that the region released: kept after the wake-up it would
  // count twice.
  std::shared_ptr<SleepableAllocator> allocator =
      SleepableAllocator::Create(driver_.get(), {.retain_backups = worker.device != DeviceKind::kCpu});
  absl::MutexLock lock(&mu_);
  allocator_ = std::move(allocator);
  return absl::OkStatus();
}

absl::Status Worker::JoinGroup(const v1::LoadModelRequest& request) {
  const v1::ParallelConfig& parallel = request.parallel();
  std::shared_ptr<Communicator> communicator = MakeSingleCommunicator();
  if (parallel.world_size() > 1 && device_->kind() == DeviceKind::kCuda) {
    DeviceGroupOptions options;
    options.group_name = parallel.group_name();
    options.rank = parallel.rank();
    options.world_size = parallel.world_size();
    options.rank_hosts.assign(parallel.rank_hosts().begin(), parallel.rank_hosts().end());
    options.nccl_unique_id = parallel.nccl_unique_id();
    options.batch_invariant = request.batch_invariant();
    ASSIGN_OR_RETURN(communicator, parts_.join_devices(options, device_.get()));
  } else if (parallel.world_size() > 1) {
    ShmCommunicatorOptions options;
    options.group_name = parallel.group_name();
    options.rank = parallel.rank();
    options.world_size = parallel.world_size();
    options.spin = SpinningPays(load_options_);
    ASSIGN_OR_RETURN(communicator, MakeShmCommunicator(options));
  }
  std::string reason;
  {
    absl::MutexLock lock(&mu_);
    communicator_ = std::move(communicator);
    reason = abort_reason_;
  }
  // Abort was called while the group was forming, when there was nothing to abort yet.
  if (reason.empty()) return absl::OkStatus();
  communicator_->Abort(reason);  // may take its time, so GetStatus must not wait for it
  return absl::AbortedError(reason);
}

absl::StatusOr<int64_t> Worker::DoAllocateKvCache(const v1::KvCacheConfig& config) {
  RETURN_IF_ERROR(RequireState({WorkerState::kLoaded}, "AllocateKvCache"));
  if (config.num_blocks() < 2) {
    return absl::InvalidArgumentError(absl::StrCat("num_blocks: ", config.num_blocks(), " is less than 2"));
  }
  if (config.block_size() != load_request_.block_size() || config.dtype() != load_request_.kv_cache_dtype()) {
    return absl::InvalidArgumentError("kv_cache: block_size and kv_cache_dtype must be those of LoadModel");
  }
  RETURN_IF_ERROR(runner_->AllocateKvCache(config.num_blocks()));
  SetState(WorkerState::kAwake);
  return runner_->kv_block_bytes() * config.num_blocks();
}

absl::StatusOr<std::unique_ptr<PendingStep>> Worker::DoLaunch(const v1::StepRequest& request) {
  RETURN_IF_ERROR(RequireState({WorkerState::kAwake}, "Execute"));
  if (absl::Status status = communicator_->Resume(); !status.ok()) return Fail(status);
  absl::StatusOr<std::unique_ptr<PendingStep>> step = runner_->Launch(request);
  if (!step.ok()) return Fail(step.status());
  return step;
}

absl::StatusOr<Worker::BytesByTag> Worker::DoSleep(int level) {
  RETURN_IF_ERROR(RequireState({WorkerState::kAwake, WorkerState::kAsleep}, "Sleep"));
  if (level < kMinSleepLevel || level > kMaxSleepLevel) {
    return absl::InvalidArgumentError(absl::StrCat("level: must be ", kSleepLevelNames, ", not ", level));
  }
  RETURN_IF_ERROR(device_->Synchronize());  // nothing may run on memory that is released
  std::map<std::string, RestoreMode> modes;
  for (const auto& [tag, bytes] : allocator_->ResidentBytes()) modes[tag] = RestoreMode::kDiscard;
  // Weights that are resident but empty (their reload is still to come) are not worth a copy.
  if (level == 1 && !weights_lost_) modes[kWeightsTag] = RestoreMode::kHostBackup;
  // Suspend comes before what can fail on one rank alone: all ranks suspend together, and resume together at
  // their next step.
  if (absl::Status status = communicator_->Suspend(); !status.ok()) return Fail(status);
  ASSIGN_OR_RETURN(BytesByTag freed, allocator_->Sleep(modes));
  if (level == 2) weights_lost_ = true;
  SetState(WorkerState::kAsleep, weights_lost_ ? 2 : 1);
  return freed;
}

absl::StatusOr<Worker::BytesByTag> Worker::DoWakeUp(const std::vector<std::string>& tags) {
  RETURN_IF_ERROR(RequireState({WorkerState::kAwake, WorkerState::kAsleep}, "WakeUp"));
  const BytesByTag known = allocator_->ResidentBytes();
  for (const std::string& tag : tags) {
    if (known.count(tag) == 0)
      return absl::InvalidArgumentError(absl::StrCat("tags: there is no '", tag, "'"));
  }
  ASSIGN_OR_RETURN(BytesByTag mapped, allocator_->WakeUp(tags));
  if (absl::Status status = FinishWakeUp(mapped); !status.ok()) {
    std::map<std::string, RestoreMode> modes;
    for (const auto& [tag, bytes] : mapped) modes[tag] = RestoreMode::kDiscard;
    if (mapped.count(kWeightsTag) > 0 && !weights_lost_) modes[kWeightsTag] = RestoreMode::kHostBackup;
    if (absl::StatusOr<BytesByTag> undone = allocator_->Sleep(modes); !undone.ok())
      return Fail(undone.status());
    if (mapped.count(kWeightsTag) > 0) SetState(WorkerState::kAsleep, weights_lost_ ? 2 : 1);
    return status;
  }
  return mapped;
}

// Restores what mapping alone does not: discarded weights, and the runner's state once every tag is resident.
absl::Status Worker::FinishWakeUp(const BytesByTag& mapped) {
  if (mapped.count(kWeightsTag) > 0 && weights_lost_) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                     parts_.open_checkpoint(load_request_.model_path(), FormatOf(load_request_)));
    RETURN_IF_ERROR(runner_->ReloadWeights(*checkpoint, [](int64_t, int64_t) {}));
    weights_lost_ = false;
  }
  if (mapped.empty() || !AllResident(allocator_->ResidentBytes())) return absl::OkStatus();
  RETURN_IF_ERROR(runner_->ResetAfterWake());
  SetState(WorkerState::kAwake);
  return absl::OkStatus();
}

void Worker::SetState(WorkerState state, int sleep_level) {
  absl::MutexLock lock(&mu_);
  state_ = state;
  sleep_level_ = sleep_level;
}

absl::Status Worker::RequireState(std::initializer_list<WorkerState> allowed, const char* call) const {
  absl::MutexLock lock(&mu_);
  if (std::find(allowed.begin(), allowed.end(), state_) != allowed.end()) return absl::OkStatus();
  if (state_ == WorkerState::kFailed) return error_;
  return absl::FailedPreconditionError(absl::StrCat(call, ": the worker is ", WorkerStateName(state_)));
}

// The first failure stays. The peers learn of it at once, instead of waiting for a rank that will not come.
absl::Status Worker::Fail(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    if (state_ == WorkerState::kFailed) return status;
    state_ = WorkerState::kFailed;
    sleep_level_ = 0;
    error_ = status;
  }
  LogError("{}", status.ToString());
  Abort(absl::StrCat("rank ", load_request_.parallel().rank(), " failed: ", status.message()));
  return status;
}

}  // namespace somnus
