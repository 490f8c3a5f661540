#include "coordinator/adapters/adapter_engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "coordinator/engine/engine_report.h"
#include "coordinator/request/expiry.h"
#include "coordinator/residency/engine_state.h"

namespace somnus {
namespace {

// The pause before a full engine is offered the same requests again, and between two looks at a drain.
constexpr absl::Duration kRoomPause = absl::Milliseconds(20);

void GiveAdapter(const AdapterRegistry::Adapter& adapter, std::vector<EngineRequest>* requests) {
  for (EngineRequest& request : *requests) {
    request.adapter = adapter;
    request.cache_salt = absl::StrCat(adapter->salt, request.cache_salt);
  }
}

}  // namespace

AdapterEngine::AdapterEngine(std::shared_ptr<Engine> engine, std::shared_ptr<AdapterRegistry> registry,
                             const QueueLimits& limits, EngineObserver* observer)
    : engine_(std::move(engine)), registry_(std::move(registry)), observer_(observer), waits_(limits) {
  absl::MutexLock lock(&join_mu_);
  bringer_ = std::thread([this] { BringAdapters(); });
  ender_ = std::thread([this] { EndWaits(); });
}

AdapterEngine::~AdapterEngine() { DrainAndStop(absl::ZeroDuration()); }

absl::Status AdapterEngine::SubmitAll(std::vector<EngineRequest> requests) {
  const std::string name = requests.empty() ? "" : requests.front().adapter_name;
  {
    absl::MutexLock lock(&mu_);
    if (draining_) return absl::UnavailableError(WhyNotReady(EngineState::kDraining));
    if (!name.empty()) {
      ASSIGN_OR_RETURN(const AdapterRegistry::Adapter adapter, registry_->Acquire(name));
      // Nobody overtakes requests that wait for the same adapter, or are on their way.
      const bool is_next = !waits_.Awaits(name) && !IsMoving(name);
      if (adapter != nullptr && is_next) GiveAdapter(adapter, &requests);
    }
    if (!name.empty() && requests.front().adapter == nullptr) {
      const EngineState state = engine_->state();
      if (state == EngineState::kFailed || state == EngineState::kDraining)
        return absl::UnavailableError(WhyNotReady(state));
      const auto count = static_cast<int32_t>(requests.size());
      RETURN_IF_ERROR(waits_.Add(std::move(requests)));
      registry_->NoteWaiting(name, count);
      news_->Stop();
      return absl::OkStatus();
    }
  }
  return engine_->SubmitAll(std::move(requests));
}

void AdapterEngine::Abort(const std::string& request_id) {
  {
    absl::MutexLock lock(&mu_);
    if (const auto moving = moving_.find(request_id); moving != moving_.end()) {
      moving->second = true;
      return;
    }
    if (std::optional<EngineRequest> request = waits_.Remove(request_id)) {
      aborted_.push_back(*std::move(request));
      news_->Stop();
      return;
    }
  }
  engine_->Abort(request_id);
}

absl::Status AdapterEngine::Health() const {
  const EngineStats stats = Stats();
  // The engine below knows nothing of the requests that wait here.
  return stats.call_stalls ? absl::UnavailableError(ReportState(stats).Line()) : engine_->Health();
}

EngineStats AdapterEngine::Stats() const {
  EngineStats stats = engine_->Stats();
  absl::MutexLock lock(&mu_);
  stats.num_waiting += static_cast<int32_t>(waits_.num_waiting());
  stats.waiting_tokens += waits_.waiting_tokens();
  if (waits_.num_waiting() > 0 && stats.stall.ok() && !stats.lifecycle_call.stall.ok())
    stats.NoteThatCallStalls();
  if (const std::optional<absl::Time> oldest = waits_.oldest_arrival())
    stats.oldest_wait = std::max(stats.oldest_wait, absl::Now() - *oldest);
  return stats;
}

void AdapterEngine::DrainAndStop(absl::Duration grace) {
  const MonotonicTime deadline = MonotonicNow() + grace;
  Requests left;
  {
    absl::MutexLock lock(&mu_);
    draining_ = true;
  }
  AwaitEnd(deadline);
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    left = waits_.TakeAll();
    news_->Stop();
  }
  stop_.Stop();
  EndAborted();
  End(std::move(left), FinishReason::kError, absl::UnavailableError(WhyNotReady(EngineState::kDraining)));
  // First: an engine that stops ends the call for which a thread waits.
  engine_->DrainAndStop(std::max(absl::ZeroDuration(), deadline - MonotonicNow()));
  absl::MutexLock lock(&join_mu_);
  if (bringer_.joinable()) bringer_.join();
  if (ender_.joinable()) ender_.join();
}

void AdapterEngine::AwaitEnd(MonotonicTime deadline) const {
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (MayEnd()) return;
    }
    const absl::Duration left = deadline - MonotonicNow();
    if (left <= absl::ZeroDuration() || stop_.WaitFor(std::min(left, kRoomPause))) return;
  }
}

void AdapterEngine::BringAdapters() {
  while (true) {
    std::string name;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &AdapterEngine::MayBring));
      if (stopped_) return;
      name = waits_.FirstName();
    }
    const AdapterRegistry::Brought brought = registry_->Bring(name, [this, &name] { return IsWanted(name); });
    const bool not_yet = brought.adapter.ok() && *brought.adapter == nullptr;
    if (!not_yet && Settle(name, brought)) continue;
    {
      absl::MutexLock lock(&mu_);
      waits_.PutLast(name);
    }
    stop_.WaitFor(kRoomPause);
  }
}

bool AdapterEngine::IsWanted(const std::string& name) const {
  absl::MutexLock lock(&mu_);
  return !stopped_ && waits_.Awaits(name);
}

void AdapterEngine::EndWaits() {
  while (true) {
    std::shared_ptr<StopSignal> news;
    absl::Duration patience;
    {
      absl::MutexLock lock(&mu_);
      news = news_;
      patience = waits_.NextExpiry() - MonotonicNow();
    }
    news->WaitFor(patience);
    {
      absl::MutexLock lock(&mu_);
      if (stopped_) return;
      if (news_->stopped()) news_ = std::make_shared<StopSignal>();
    }
    EndAborted();
    EndExpired();
  }
}

void AdapterEngine::EndAborted() {
  Requests aborted;
  {
    absl::MutexLock lock(&mu_);
    aborted.swap(aborted_);
  }
  End(std::move(aborted), FinishReason::kAbort, absl::OkStatus());
}

void AdapterEngine::EndExpired() {
  const MonotonicTime now = MonotonicNow();
  Requests expired;
  {
    absl::MutexLock lock(&mu_);
    expired = waits_.TakeExpired(now);
  }
  for (EngineRequest& request : expired) {
    const ExpiryCause cause = CauseOfExpiry(request, /*was_scheduled=*/false, now);
    if (observer_ != nullptr) observer_->OnRequestExpired(cause);
    Requests one;
    one.push_back(std::move(request));
    End(std::move(one), FinishReason::kError, ExpiryError(cause));
  }
}

bool AdapterEngine::Settle(const std::string& name, const AdapterRegistry::Brought& brought) {
  if (absl::IsCancelled(brought.adapter.status())) return true;
  while (true) {
    Requests group = TakeNext(name, brought.load);
    if (group.empty()) return true;
    if (!brought.adapter.ok()) {
      End(std::move(group), FinishReason::kError, brought.adapter.status());
    } else if (!SubmitWaiting(std::move(group), *brought.adapter)) {
      return false;
    }
  }
}

AdapterEngine::Requests AdapterEngine::TakeNext(const std::string& name, const std::string& load) {
  absl::MutexLock lock(&mu_);
  // A request that came after a change of the name was added under this lock, so that LoadOf shows the
  // change.
  if (registry_->LoadOf(name) != load) return {};
  Requests group = waits_.TakeFirst(name);
  moving_name_ = name;
  for (const EngineRequest& request : group) moving_.emplace(request.id, false);
  return group;
}

bool AdapterEngine::SubmitWaiting(Requests requests, const AdapterRegistry::Adapter& adapter) {
  const auto count = static_cast<int32_t>(requests.size());
  Requests submitted = requests;
  GiveAdapter(adapter, &submitted);
  registry_->NoteWaiting(adapter->name, -count);
  const absl::Status status = engine_->SubmitAll(std::move(submitted));
  if (!status.ok()) {
    registry_->NoteWaiting(adapter->name, count);
    if (absl::IsResourceExhausted(status) && PutBack(&requests)) return false;
    End(std::move(requests), FinishReason::kError, status);
    return true;
  }
  std::vector<std::string> aborted;
  {
    absl::MutexLock lock(&mu_);
    for (const EngineRequest& request : requests) {
      if (EndMove(request.id)) aborted.push_back(request.id);
    }
  }
  for (const std::string& id : aborted) engine_->Abort(id);
  return true;
}

bool AdapterEngine::EndMove(const std::string& id) {
  const auto moving = moving_.find(id);
  if (moving == moving_.end()) return false;
  const bool aborted = moving->second;
  moving_.erase(moving);
  return aborted;
}

bool AdapterEngine::PutBack(Requests* requests) {
  absl::MutexLock lock(&mu_);
  if (stopped_) return false;
  std::vector<std::string> aborted;
  for (const EngineRequest& request : *requests) {
    if (EndMove(request.id)) aborted.push_back(request.id);
  }
  waits_.AddFirst(std::move(*requests));
  for (const std::string& id : aborted) aborted_.push_back(*waits_.Remove(id));
  news_->Stop();
  return true;
}

void AdapterEngine::End(Requests requests, FinishReason reason, const absl::Status& error) {
  if (requests.empty()) return;
  {
    absl::MutexLock lock(&mu_);
    for (const EngineRequest& request : requests) moving_.erase(request.id);
  }
  for (const EngineRequest& request : requests) {
    registry_->NoteWaiting(request.adapter_name, -1);
    if (observer_ != nullptr)
      observer_->OnRequestFinished(request, {.reason = reason, .finished = absl::Now()});
    RequestOutput output;
    output.finish_reason = reason;
    output.error = error;
    request.sink->OnOutput(std::move(output));
  }
}

}  // namespace somnus
