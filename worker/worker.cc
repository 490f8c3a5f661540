#include "worker/worker.h"

#include <unistd.h>

#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/build_id.h"
#include "base/memory_tags.h"
#include "base/monotonic.h"
#include "base/status_macros.h"
#include "worker/runner/adapter_reader.h"

namespace somnus {
namespace {

// A call that reads adapters waits so long for the end of an earlier call, which ends between two matrices.
constexpr absl::Duration kReadPatience = absl::Seconds(2);

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
    : parts_(std::move(parts)),
      load_(options, &parts_),
      weights_(&parts_, epoch_.lifecycle(), &load_),
      cache_(&epoch_, &load_, meter_.bytes()),
      transition_(&epoch_, &load_, &weights_, &cache_, &meter_),
      steps_(options.step_timeout, &epoch_, &load_, &weights_, &cache_) {}

Worker::~Worker() {
  Abort("the worker leaves");
  thread_.Run([this] {  // before the device and the memory that these parts borrow
    cache_.DestroyHostTier();
    weights_.update()->Drop();
    load_.DestroyRunner();
    epoch_.LeaveGroup();
  });
}

template <typename Work>
auto Worker::InEpoch(int64_t epoch, const Work& work) -> decltype(work()) {
  std::optional<decltype(work())> result;
  thread_.Run([&] {
    // Checked here, because an epoch may begin while the call waits for its turn.
    const absl::Status admitted = epoch_.Admit(epoch);
    if (admitted.ok()) {
      result.emplace(work());
    } else {
      result.emplace(admitted);
    }
  });
  return *std::move(result);
}

absl::StatusOr<v1::WorkerSnapshot> Worker::Fence(int64_t epoch, absl::Duration patience,
                                                 const std::function<void()>& end_streams) {
  RETURN_IF_ERROR(epoch_.Announce(epoch));
  end_streams();
  struct Result {
    absl::Status status;
    StopSignal known;
  };
  const auto begun = std::make_shared<Result>();  // shared: the result may come after `patience`
  thread_.Post([this, epoch, begun] {
    begun->status = BeginEpoch(epoch);
    begun->known.Stop();
  });
  if (!begun->known.WaitFor(patience)) {
    return absl::DeadlineExceededError(
        absl::StrCat("Fence: the device is still busy after ", absl::FormatDuration(patience)));
  }
  RETURN_IF_ERROR(begun->status);
  return Snapshot();
}

absl::Status Worker::BeginEpoch(int64_t epoch) {
  // Not pending: an earlier call has begun the epoch, or a later call will begin a later epoch.
  if (!epoch_.pending(epoch)) return epoch_.Check(epoch);
  if (load_.runner() != nullptr) {
    // A device that returns errors even when nothing is left to do has to be opened by a new process.
    if (absl::Status status = load_.runner()->BeginEpoch(); !status.ok()) return epoch_.FailForGood(status);
  }
  transition_.BeginEpoch();
  cache_.ForgetAll();  // no coordinator begins an epoch with blocks that were computed in another epoch
  weights_.update()->Drop();
  steps_.BeginEpoch();
  epoch_.Begin(epoch);
  return absl::OkStatus();
}

absl::StatusOr<v1::NewGroupResponse> Worker::NewGroup(const v1::NewGroupRequest& request) {
  return epoch_.NewGroup(request);
}

absl::StatusOr<v1::LoadModelEvent> Worker::LoadModel(const v1::LoadModelRequest& request,
                                                     const ModelRunner::Progress& progress) {
  return InEpoch(request.group_epoch(), [&]() -> absl::StatusOr<v1::LoadModelEvent> {
    RETURN_IF_ERROR(epoch_.lifecycle()->Require({WorkerState::kCreated}, "LoadModel"));
    absl::StatusOr<v1::LoadModelEvent> event = DoLoad(request, progress);
    if (!event.ok()) return epoch_.FailForGood(event.status());
    epoch_.lifecycle()->Set(WorkerState::kLoaded);
    return event;
  });
}

absl::StatusOr<v1::LoadModelEvent> Worker::DoLoad(const v1::LoadModelRequest& request,
                                                  const ModelRunner::Progress& progress) {
  RETURN_IF_ERROR(load_.Begin(request));
  ASSIGN_OR_RETURN(const WorkerWeights::Files files, weights_.OpenForLoad());
  RETURN_IF_ERROR(load_.OpenDevice());
  ASSIGN_OR_RETURN(v1::LoadModelEvent event,
                   load_.LoadRunner(*files.checkpoint, epoch_.communicator(), progress));
  load_.runner()->SetMaskSource(epoch_.masks());
  weights_.SetLoaded(files.source, &event);
  return event;
}

absl::Status Worker::JoinGroup(const v1::JoinGroupRequest& request) {
  return InEpoch(request.group_epoch(), [&] { return epoch_.Join(request.parallel(), load_); });
}

absl::StatusOr<v1::ProfileResponse> Worker::Profile(const v1::ProfileRequest& request) {
  return InEpoch(request.group_epoch(), [&]() -> absl::StatusOr<v1::ProfileResponse> {
    ASSIGN_OR_RETURN(v1::ProfileResponse response, cache_.Profile());
    response.set_weights_version(weights_version());
    return response;
  });
}

absl::StatusOr<int64_t> Worker::AllocateKvCache(const v1::AllocateKvCacheRequest& request) {
  return InEpoch(request.group_epoch(), [&]() -> absl::StatusOr<int64_t> {
    ASSIGN_OR_RETURN(const int64_t bytes, cache_.Allocate(request.kv_cache(), request.defer_graphs()));
    load_.allocator()->BeginAsleep({});
    transition_.SetRestingState();
    return bytes;
  });
}

absl::StatusOr<v1::ResizeKvCacheResponse> Worker::ResizeKvCache(const v1::ResizeKvCacheRequest& request) {
  return InEpoch(request.group_epoch(), [&]() -> absl::StatusOr<v1::ResizeKvCacheResponse> {
    ASSIGN_OR_RETURN(v1::ResizeKvCacheResponse response, cache_.Resize(request.num_blocks()));
    response.set_weights_version(weights_version());
    return response;
  });
}

void Worker::ExecuteAsync(v1::StepRequest request, std::function<void(AwaitReply)> launched) {
  auto launch = [this, request = std::move(request), launched = std::move(launched)] {
    launched(steps_.Launch(request));
  };
  thread_.Post(std::move(launch), steps_.timeout());
}

absl::StatusOr<v1::SelfCheckResponse> Worker::SelfCheck(const v1::SelfCheckRequest& request) {
  return InEpoch(request.group_epoch(), [&] { return steps_.SelfCheck(); });
}

absl::StatusOr<v1::PlanResponse> Worker::Plan(const v1::PlanRequest& request) {
  return InEpoch(request.group_epoch(), [&] { return transition_.Plan(request.transition()); });
}

absl::Status Worker::Prepare(const v1::PrepareRequest& request) {
  return InEpoch(request.group_epoch(), [&] { return transition_.Prepare(request); });
}

absl::StatusOr<v1::CommitResponse> Worker::Commit(const v1::CommitRequest& request) {
  return InEpoch(request.group_epoch(), [&] { return transition_.Commit(request.prepare_operation_id()); });
}

absl::Status Worker::AbortTransition(const v1::AbortRequest& request) {
  return InEpoch(request.group_epoch(), [&] { return transition_.Abort(request.prepare_operation_id()); });
}

absl::StatusOr<v1::PrefetchResponse> Worker::Prefetch(const v1::PrefetchRequest& request) {
  return InEpoch(request.group_epoch(), [&] { return weights_.Prefetch(request.cpu_share()); });
}

absl::StatusOr<v1::WorkerReloadWeightsResponse> Worker::ReloadWeights(
    const v1::WorkerReloadWeightsRequest& request) {
  return InEpoch(request.group_epoch(), [&] { return weights_.Reload(request); });
}

absl::Status Worker::BeginWeightUpdate(const v1::BeginWeightUpdateRequest& request) {
  return InEpoch(request.group_epoch(), [&] { return weights_.BeginUpdate(request); });
}

absl::StatusOr<uint64_t> Worker::OpenWeightStream(int64_t epoch, const std::string& update_id) {
  return InEpoch(epoch, [&] { return weights_.update()->OpenStream(update_id); });
}

absl::Status Worker::AddWeights(int64_t epoch, uint64_t stream, const v1::WeightChunk& chunk) {
  return InEpoch(epoch, [&] { return weights_.AddChunk(stream, chunk); });
}

absl::StatusOr<v1::WorkerUpdateWeightsResponse> Worker::CloseWeightStream(int64_t epoch, uint64_t stream) {
  return InEpoch(epoch, [&] { return weights_.update()->CloseStream(stream); });
}

absl::StatusOr<v1::WorkerUpdateWeightsResponse> Worker::ReceivedWeights(int64_t epoch,
                                                                        const std::string& update_id) {
  return InEpoch(epoch, [&] { return weights_.update()->Received(update_id); });
}

absl::Status Worker::FinishWeightUpdate(const v1::FinishWeightUpdateRequest& request) {
  return InEpoch(request.group_epoch(), [&] { return weights_.FinishUpdate(request); });
}

absl::StatusOr<v1::SetAdaptersResponse> Worker::SetAdapters(const v1::SetAdaptersRequest& request) {
  return InEpoch(request.group_epoch(), [&]() -> absl::StatusOr<v1::SetAdaptersResponse> {
    const Lifecycle& lifecycle = *epoch_.lifecycle();
    RETURN_IF_ERROR(
        lifecycle.Require({WorkerState::kLoaded, WorkerState::kAwake, WorkerState::kAsleep}, "SetAdapters"));
    RETURN_IF_ERROR(lifecycle.RequireNoTransition("SetAdapters"));
    const std::vector<v1::WorkerAdapter> adapters(request.adapters().begin(), request.adapters().end());
    RETURN_IF_ERROR(load_.SetAdapters(adapters));
    v1::SetAdaptersResponse response;
    response.set_weights_version(weights_version());
    for (const auto& [id, fingerprint] : load_.runner()->AdapterFingerprints())
      (*response.mutable_fingerprints())[id] = fingerprint;
    return response;
  });
}

absl::Status Worker::ReadAdapters(const v1::ReadAdaptersRequest& request,
                                  const std::function<bool()>& has_left) {
  const int64_t epoch = request.group_epoch();
  const auto add = [&](std::vector<std::shared_ptr<const HostAdapter>> adapters) -> absl::Status {
    if (has_left()) return absl::CancelledError("nobody waits for the adapters");
    return InEpoch(epoch, [&]() -> absl::Status {
      load_.AddReadAdapters(std::move(adapters));
      return absl::OkStatus();
    });
  };
  const std::vector<v1::WorkerAdapter> wanted(request.adapters().begin(), request.adapters().end());
  std::map<uint64_t, std::string> held;
  const auto begin = [&]() -> absl::StatusOr<std::shared_ptr<const AdapterReader>> {
    RETURN_IF_ERROR(epoch_.lifecycle()->Require(
        {WorkerState::kLoaded, WorkerState::kAwake, WorkerState::kAsleep}, "ReadAdapters"));
    RETURN_IF_ERROR(load_.runner()->CheckAdapters(wanted));
    held = load_.runner()->AdapterFingerprints();
    return load_.runner()->adapter_reader();
  };
  ASSIGN_OR_RETURN(const std::shared_ptr<const AdapterReader> reader, InEpoch(epoch, begin));
  if (reader == nullptr)
    return absl::FailedPreconditionError("adapters: the server was started without --enable-lora");
  // An earlier reading that never ends does not hold up the call that drops the adapters.
  if (wanted.empty()) return add({});
  if (!reading_.Take(kReadPatience))
    return absl::AbortedError("adapters: an earlier call still reads files; its file system may hang");
  const absl::Cleanup ended = [this] { reading_.Give(); };
  std::vector<std::shared_ptr<const HostAdapter>> adapters;
  for (const v1::WorkerAdapter& adapter : wanted) {
    if (held.count(adapter.id()) > 0) continue;
    ASSIGN_OR_RETURN(adapters.emplace_back(), reader->Read(adapter, has_left));
  }
  return add(std::move(adapters));
}

absl::StatusOr<v1::ChecksumWeightsResponse> Worker::ChecksumWeights(const v1::ChecksumWeightsRequest& request,
                                                                    const std::function<bool()>& has_left) {
  const int64_t epoch = request.group_epoch();
  ASSIGN_OR_RETURN(const std::unique_ptr<WeightChecksums> sums,
                   InEpoch(epoch, [&] { return weights_.BeginChecksums(); }));
  while (!sums->done()) {
    if (has_left()) return absl::CancelledError("nobody waits for the checksums");
    RETURN_IF_ERROR(InEpoch(epoch, [&] { return weights_.AddToChecksums(sums.get()); }));
  }
  return sums->response();
}

bool Worker::WaitIdle(absl::Duration timeout) {
  const MonotonicTime deadline = MonotonicNow() + timeout;
  if (!thread_.WaitIdle(timeout) || !reading_.Take(deadline - MonotonicNow())) return false;
  reading_.Give();
  return true;
}

v1::WorkerStatusResponse Worker::GetStatus() const {
  v1::WorkerStatusResponse response;
  response.set_state(WorkerStateName(epoch_.lifecycle().state()));
  response.set_sleep_level(epoch_.lifecycle().sleep_level());
  response.set_rss_bytes(ResidentSetBytes());
  response.set_graph_bytes(cache_.graph_bytes());
  response.set_weights_version(weights_version());
  response.set_group_epoch(group_epoch());
  if (load_.FillStatus(&response)) {
    (*response.mutable_host_bytes_by_tag())[kKvCacheTag] += cache_.host_bytes();
    (*response.mutable_file_bytes_by_tag())[kWeightsTag] += weights_.backup_bytes();
  }
  if (std::optional<v1::TransitionProgress> progress = meter_.Progress(); progress.has_value())
    *response.mutable_transition() = *std::move(progress);
  return response;
}

v1::WorkerSnapshot Worker::Snapshot() const {
  v1::WorkerSnapshot snapshot;
  snapshot.set_state(WorkerStateName(epoch_.lifecycle().state()));
  snapshot.set_sleep_level(epoch_.lifecycle().sleep_level());
  snapshot.set_group_epoch(group_epoch());
  snapshot.set_weights_version(weights_version());
  snapshot.set_weights_stale(weights_.record().stale());
  snapshot.set_checkpoint_fingerprint(weights_.record().fingerprint());
  snapshot.set_last_step_id(last_step_id());
  snapshot.set_build_id(BuildId());
  load_.FillSnapshot(&snapshot);
  cache_.FillSnapshot(&snapshot);
  return snapshot;
}

}  // namespace somnus
