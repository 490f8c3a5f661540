#include "worker/worker.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/status_macros.h"
#include "proto/limits.h"
#include "worker/comm/nccl_api.h"

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

}  // namespace

Worker::Worker(const WorkerOptions& options, WorkerParts parts)
    : options_(options), parts_(std::move(parts)) {}

Worker::~Worker() {
  Abort("the worker leaves");
  thread_.Run([this] {  // before the device and the memory that they borrow
    kv_host_tier_.reset();
    update_.reset();
    runner_.reset();
    communicator_.BeginEpoch(epoch_);
  });
}

// Needs no device, and therefore not the runner thread.
absl::StatusOr<v1::NewGroupResponse> Worker::NewGroup(const v1::NewGroupRequest& request) {
  RETURN_IF_ERROR(fence_.Admit(request.group_epoch()));
  v1::NewGroupResponse response;
  if (!request.listen_host().empty()) {
    ASSIGN_OR_RETURN(TcpListener port, ListenOnTcp(request.listen_host()));
    response.set_port(port.port);
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(fence_.Check(request.group_epoch()));  // an epoch that begins after this closes the port
    open_port_ = std::move(port);
    return response;
  }
  absl::StatusOr<const NcclApi*> nccl = NcclApi::Load();
  if (!nccl.ok()) {
    LogWarning("{}", std::string(nccl.status().message()));
    return response;
  }
  ASSIGN_OR_RETURN(*response.mutable_nccl_unique_id(), MakeNcclUniqueId(**nccl));
  return response;
}

absl::StatusOr<v1::LoadModelEvent> Worker::LoadModel(const v1::LoadModelRequest& request,
                                                     const ModelRunner::Progress& progress) {
  using Event = absl::StatusOr<v1::LoadModelEvent>;
  return InEpoch<Event>(request.group_epoch(), [&]() -> Event {
    RETURN_IF_ERROR(lifecycle_.Require({WorkerState::kCreated}, "LoadModel"));
    Event event = DoLoad(request, progress);
    if (!event.ok()) return FailForGood(event.status());
    lifecycle_.Set(WorkerState::kLoaded);
    return event;
  });
}

absl::Status Worker::JoinGroup(const v1::JoinGroupRequest& request) {
  return InEpoch<absl::Status>(request.group_epoch(), [&] { return DoJoinGroup(request.parallel()); });
}

absl::StatusOr<v1::ProfileResponse> Worker::Profile(const v1::ProfileRequest& request) {
  return InEpoch<absl::StatusOr<v1::ProfileResponse>>(request.group_epoch(), [&] { return DoProfile(); });
}

absl::StatusOr<int64_t> Worker::AllocateKvCache(const v1::AllocateKvCacheRequest& request) {
  return InEpoch<absl::StatusOr<int64_t>>(
      request.group_epoch(), [&] { return DoAllocateKvCache(request.kv_cache(), request.defer_graphs()); });
}

absl::StatusOr<v1::ResizeKvCacheResponse> Worker::ResizeKvCache(const v1::ResizeKvCacheRequest& request) {
  return InEpoch<absl::StatusOr<v1::ResizeKvCacheResponse>>(
      request.group_epoch(), [&] { return DoResizeKvCache(request.num_blocks()); });
}

void Worker::ExecuteAsync(v1::StepRequest request, std::function<void(AwaitReply)> launched) {
  auto launch = [this, request = std::move(request), launched = std::move(launched)] {
    ++steps_in_progress_;
    // Shared, because functions are copied.
    const auto refused = std::make_shared<absl::Status>();
    const auto step =
        std::make_shared<absl::StatusOr<std::unique_ptr<PendingStep>>>(DoLaunch(request, refused.get()));
    launched([this, step, refused, id = request.step_id(), epoch = request.group_epoch()] {
      const Heartbeat::Wait wait(options_.step_timeout);
      absl::StatusOr<v1::StepReply> result = step->ok() ? (**step)->Wait() : step->status();
      if (step->ok() && !result.ok()) Fail(epoch, result.status()).IgnoreError();
      v1::StepReply reply = result.ok() ? *std::move(result) : v1::StepReply();
      if (result.ok() && !refused->ok()) {
        v1::SlotError* const error = reply.add_slot_errors();
        error->set_slot(kSwapsSlot);
        error->set_code(refused->raw_code());
        error->set_message(std::string(refused->message()));
      }
      --steps_in_progress_;
      reply.set_step_id(id);
      reply.set_error_code(result.status().raw_code());
      reply.set_error_message(std::string(result.status().message()));
      reply.set_weights_version(weights_version());
      reply.set_kv_host_bytes(KvHostBytes());
      return reply;
    });
  };
  thread_.Post(std::move(launch), options_.step_timeout);
}

std::shared_ptr<SleepableAllocator> Worker::allocator() const {
  absl::MutexLock lock(&mu_);
  return allocator_;
}

v1::WorkerStatusResponse Worker::GetStatus() const {
  v1::WorkerStatusResponse response;
  response.set_state(WorkerStateName(lifecycle_.state()));
  response.set_sleep_level(lifecycle_.sleep_level());
  response.set_rss_bytes(ResidentSetBytes());
  response.set_graph_bytes(graph_bytes_.load());
  response.set_weights_version(weights_version());
  response.set_group_epoch(group_epoch());
  {
    absl::MutexLock lock(&mu_);
    response.set_weight_types(loaded_.weight_types);
    response.set_numa(loaded_.numa);
  }
  if (const auto allocator = this->allocator(); allocator != nullptr) {
    for (const auto& [tag, bytes] : allocator->Stats()) {
      (*response.mutable_bytes_by_tag())[tag] = bytes.resident;
      (*response.mutable_sleeping_bytes_by_tag())[tag] = bytes.sleeping;
      (*response.mutable_host_bytes_by_tag())[tag] = bytes.host_backup;
      (*response.mutable_file_bytes_by_tag())[tag] = bytes.file_backup;
    }
    (*response.mutable_host_bytes_by_tag())[kKvCacheTag] += KvHostBytes();
    (*response.mutable_file_bytes_by_tag())[kWeightsTag] += checkpoint_backup_.bytes();
  }
  if (std::optional<v1::TransitionProgress> progress = transition_meter_.Progress(); progress.has_value())
    *response.mutable_transition() = *std::move(progress);
  return response;
}

// Every step of the epoch is counted, also one that the worker's state refuses, so that the state's error is
// not hidden behind that of the number.
absl::Status Worker::AdmitStep(const v1::StepRequest& request) {
  RETURN_IF_ERROR(fence_.Admit(request.group_epoch()));
  const int64_t id = request.step_id(), last = last_step_id_.load();
  absl::Status order;
  if (id < 1) {
    order = absl::InvalidArgumentError(absl::StrCat("step_id: must be positive, not ", id));
  } else if (stepped_in_epoch_ && id != last + 1) {
    order = absl::InvalidArgumentError(absl::StrCat("step_id: ", id, " does not follow ", last));
  } else {
    stepped_in_epoch_ = true;
    last_step_id_ = id;
  }
  RETURN_IF_ERROR(lifecycle_.Require({WorkerState::kAwake}, "Execute"));
  RETURN_IF_ERROR(order);
  return RequireComputable("Execute");
}

absl::Status Worker::RequireComputable(const char* call) const {
  RETURN_IF_ERROR(lifecycle_.Require({WorkerState::kAwake}, call));
  if (prepared_.has_value())
    return absl::FailedPreconditionError(absl::StrCat(call, ": a transition is prepared"));
  if (weights_.stale()) return absl::FailedPreconditionError(absl::StrCat(call, ": the weights are stale"));
  return RequireGroup(call);
}

absl::StatusOr<std::unique_ptr<PendingStep>> Worker::DoLaunch(const v1::StepRequest& request,
                                                              absl::Status* refused) {
  RETURN_IF_ERROR(AdmitStep(request));
  ranks_may_differ_ = false;
  if (absl::Status status = communicator_.Resume(); !status.ok()) return Fail(epoch_, status);
  if (absl::Status status = SwapBlocksOf(request, refused); !status.ok()) return Fail(epoch_, status);
  absl::StatusOr<std::unique_ptr<PendingStep>> step = runner_->Launch(request);
  if (!step.ok()) return Fail(epoch_, step.status());
  return step;
}

absl::Status Worker::Fail(int64_t epoch, const absl::Status& status) {
  if (lifecycle_.Fail(epoch, status)) {
    // What a Fence ends is no fault of this rank.
    if (group_epoch() == epoch) LogError("{}", status.ToString());
    AbortUpTo(epoch, absl::StrCat("rank ", communicator_.rank(), " failed: ", status.message()));
  }
  return status;
}

absl::Status Worker::FailForGood(const absl::Status& status) {
  if (lifecycle_.FailForGood(status)) {
    LogError("{}", status.ToString());
    Abort(absl::StrCat("rank ", communicator_.rank(), " failed: ", status.message()));
  }
  return status;
}

}  // namespace somnus
