#include "coordinator/replicas/replica_set.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/heartbeat.h"
#include "base/status_macros.h"
#include "coordinator/engine/engine_report.h"
#include "coordinator/replicas/commands/replica_adapters.h"
#include "coordinator/replicas/commands/replica_cache_reset.h"
#include "coordinator/replicas/commands/replica_end_waiting.h"
#include "coordinator/replicas/commands/replica_pause.h"
#include "coordinator/replicas/commands/replica_reload.h"
#include "coordinator/replicas/commands/replica_resize.h"
#include "coordinator/replicas/commands/replica_sleep.h"
#include "coordinator/replicas/commands/replica_update.h"
#include "coordinator/replicas/commands/replica_wake_up.h"
#include "coordinator/replicas/replica_prefixes.h"
#include "coordinator/request/request_bytes.h"

namespace somnus {
namespace {

// One function object of several.
template <typename... Functions>
struct Overloads : Functions... {
  using Functions::operator()...;
};

// A request is accepted only if every replica can serve the request: it may have to go on at any replica.
EngineOptions Smallest(const std::vector<ReplicaOptions>& replicas) {
  SOMNUS_CHECK(replicas.size() >= 2 && replicas.size() <= Router::kMaxReplicas);
  EngineOptions smallest = replicas[0].engine;
  for (const ReplicaOptions& replica : replicas) {
    const SchedulerOptions& scheduler = replica.engine.scheduler;
    smallest.scheduler.max_model_len = std::min(smallest.scheduler.max_model_len, scheduler.max_model_len);
    smallest.scheduler.blocks.num_blocks =
        std::min(smallest.scheduler.blocks.num_blocks, scheduler.blocks.num_blocks);
  }
  return smallest;
}

// How many blocks all prefix caches together can hold.
int64_t TotalBlocksOf(const std::vector<ReplicaOptions>& replicas) {
  int64_t total = 0;
  for (const ReplicaOptions& replica : replicas) {
    const BlockManagerOptions& blocks = replica.engine.scheduler.blocks;
    if (blocks.enable_prefix_caching) total += blocks.num_blocks;
  }
  constexpr int64_t kMaxBlocks = 1 << 18;
  return std::min(total, kMaxBlocks);
}

}  // namespace

ReplicaSet::ReplicaSet(std::vector<ReplicaOptions> replicas, EngineObserver* observer,
                       const ReplicaRetry& retry)
    : smallest_(Smallest(replicas)),
      observer_(observer),
      board_(&smallest_, &loops_),
      queue_(&smallest_, TotalBlocksOf(replicas), &loops_, &board_, replicas.size()),
      turns_(smallest_.monotonic_now),
      parts_{smallest_, loops_, board_, queue_, waits_, turns_, observer},
      revival_(parts_, retry, replicas.size()),
      roll_(parts_, &revival_) {
  loops_.Start(std::move(replicas), observer, this);
  std::vector<PinnedPrefixes*> prefixes;
  for (size_t i = 0; i < loops_.size(); ++i) prefixes.push_back(&loops_.loop(i).pinned_prefixes());
  prefixes_ = MakeReplicaPrefixes(std::move(prefixes));
  absl::MutexLock lock(&join_mu_);
  thread_ = std::thread([this] { RunQueue(); });
}

ReplicaSet::~ReplicaSet() { DrainAndStop(absl::ZeroDuration()); }

absl::Status ReplicaSet::SubmitAll(std::vector<EngineRequest> requests) {
  RETURN_IF_ERROR(EngineLoop::CheckRequests(smallest_, requests));
  SetQueuedBytes(&requests);
  if (waits_.draining()) return absl::UnavailableError(WhyNotReady(EngineState::kDraining));
  if (!AdmitsRequests(board_.state())) return absl::UnavailableError(ReportState(board_.Stats()).Line());
  if (loops_.GaveUpStaleWeights()) return absl::UnavailableError(kStaleForTooLong);
  return queue_.Submit(std::move(requests));
}

void ReplicaSet::Abort(const std::string& request_id) { queue_.Abort(request_id); }

absl::Status ReplicaSet::Health() const {
  const StateReport report = ReportState(board_.Stats());
  return report.serving() ? absl::OkStatus() : absl::UnavailableError(report.Line());
}

void ReplicaSet::OnStateChange(std::function<void()> callback) { board_.OnStateChange(std::move(callback)); }

EngineStats ReplicaSet::Stats() const {
  EngineStats stats = board_.Stats();
  stats.oldest_wait = board_.OldestWait(queue_.AddTo(&stats));
  LifecycleCallStats call = turns_.Current();
  call.steps_go_on = stats.lifecycle_call.steps_go_on;
  call.stall = stats.lifecycle_call.stall;
  call.stalled_since = stats.lifecycle_call.stalled_since;
  stats.lifecycle_call = std::move(call);
  return stats;
}

EngineViews ReplicaSet::View() {
  EngineViews views = loops_.View();
  EngineView queue = {.taken = MonotonicNow(), .replica = kCommonQueue};
  queue.max_requests = smallest_.max_viewed_requests;
  queue.requests = queue_.View(queue.max_requests);
  views.push_back(std::make_shared<const EngineView>(std::move(queue)));
  return views;
}

LifecycleResult ReplicaSet::Run(const LifecycleRequest& request) {
  return VisitRequest(
      request,
      Overloads{
          [this](const SleepRequest& one) { return ReplicaSleep(parts_, one).Run(); },
          [this](const WakeUpRequest& one) { return ReplicaWakeUp(parts_, one).Run(); },
          [this](const WakeForArrivalsRequest& one) { return ReplicaWakeUp(parts_, one).Run(); },
          [this](const EndWaitingRequest& one) { return ReplicaEndWaiting(parts_, one).Run(); },
          [this](const PrefetchRequest&) { return PrefetchAll(); },
          [this](const PauseRequest& one) { return ReplicaPause(parts_, one).Run(); },
          [this](const ResumeRequest&) { return ReplicaResume(parts_).Run(); },
          [this](const ReloadWeightsRequest& one) { return ReplicaReload(parts_, one).Run(); },
          [this](const UpdateWeightsRequest& one) { return ReplicaUpdate::Begin(parts_, one); },
          [this](const ResizeKvCacheRequest& one) { return ReplicaResize(parts_, one).Run(); },
          [this](const ResetPrefixCacheRequest& one) { return ReplicaCacheReset(parts_, one).Run(); },
          [this](const SetAdaptersRequest& one) { return ReplicaAdapters(parts_, one, &adapters_).Run(); },
          [this](const ReviveRequest& one) { return revival_.Revive(one.asleep); },
          [this](const RollRequest& one) { return roll_.Run(one.grace); },
          [this](const AbortCallRequest&) { return AbortCalls(); },
      });
}

absl::Status ReplicaSet::PrefetchAll() {
  absl::Status first;
  for (size_t i = 0; i < loops_.size(); ++i) {
    if (!loops_.HasFailed(i)) first.Update(loops_.loop(i).Prefetch());
  }
  return first;
}

absl::Status ReplicaSet::AbortCalls() {
  bool ended = waits_.Abort();
  absl::Status none = absl::FailedPreconditionError("no lifecycle call is under way");
  for (size_t i = 0; i < loops_.size(); ++i) {
    if (loops_.loop(i).Stats().lifecycle_call.name.empty()) continue;
    const absl::Status status = loops_.loop(i).AbortCall();
    ended |= status.ok();
    none = status;
  }
  return ended ? absl::OkStatus() : none;
}

void ReplicaSet::DrainAndStop(absl::Duration grace) {
  board_.NoteDrain();
  queue_.SetStage(ReplicaQueue::Stage::kClosed);
  waits_.Drain();
  // The replicas drain only afterwards: until the last request has ended, each replica takes what another
  // replica loses.
  waits_.AwaitFor([this] { return queue_.num_open() == 0 || queue_.ends() || loops_.NobodyServes(); }, grace);
  queue_.SetStage(ReplicaQueue::Stage::kEnding);
  waits_.NoteChange();
  loops_.Stop();
  absl::MutexLock join_lock(&join_mu_);
  if (!thread_.joinable()) return;
  loops_.EndReports();
  // The last pass ends the requests that replicas have handed over meanwhile.
  queue_.SetStage(ReplicaQueue::Stage::kStopped);
  thread_.join();
}

void ReplicaSet::OnRequestEnded(const EngineRequest& request) {
  queue_.NoteEnded(request);
  waits_.NoteChange();
}

void ReplicaSet::OnHandOver(std::vector<EngineRequest> requests) {
  queue_.TakeBack(std::move(requests));
  waits_.NoteChange();
}

void ReplicaSet::OnReplicaStateChange(size_t replica) {
  board_.Update();
  // A replica in any other state empties its cache.
  if (!loops_.IsAwake(replica)) queue_.NoteCacheEmpty(replica);
  revival_.NoteState(replica);
  waits_.NoteChange();
  queue_.Wake();
}

void ReplicaSet::RunQueue() {
  const Heartbeat heartbeat(smallest_.log_name, "queue of the replicas");
  while (true) {
    heartbeat.Beat();
    const absl::Duration retry = revival_.RetryDue();
    ReplicaQueue::Pass pass = queue_.TakePass();
    if (!pass.endings.empty()) waits_.NoteChange();
    for (ReplicaQueue::Ending& ending : pass.endings) Deliver(std::move(ending));
    if (pass.stopped) return;
    queue_.WaitFor(std::min(pass.next_expiry - smallest_.monotonic_now(), retry));
  }
}

// As a loop does at the end of a request.
void ReplicaSet::Deliver(ReplicaQueue::Ending ending) {
  RequestOutput output;
  output.finish_reason = ending.reason;
  output.error = std::move(ending.error);
  const RequestProgress progress =
      ending.request.progress == nullptr ? RequestProgress() : *ending.request.progress;
  output.num_cached_tokens = progress.num_cached_tokens;
  output.moments = std::make_shared<const RequestMoments>(progress.moments);
  if (observer_ != nullptr && ending.expired.has_value()) observer_->OnRequestExpired(*ending.expired);
  if (observer_ != nullptr) {
    observer_->OnRequestFinished(ending.request,
                                 {.reason = ending.reason,
                                  .num_output_tokens = static_cast<int32_t>(progress.output_tokens.size()),
                                  .num_cached_tokens = progress.num_cached_tokens,
                                  .num_preemptions = progress.num_preemptions,
                                  .moments = progress.moments,
                                  .finished = smallest_.now()});
  }
  ending.request.sink->OnOutput(std::move(output));
}

}  // namespace somnus
