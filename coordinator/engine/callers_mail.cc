#include "coordinator/engine/callers_mail.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "coordinator/residency/engine_state.h"

namespace somnus {
namespace {

absl::Status StoppedError() { return absl::UnavailableError("the engine has stopped"); }

}  // namespace

absl::Status CallersMail::Submit(std::vector<EngineRequest> requests) {
  {
    absl::MutexLock lock(&mu_);
    if (arrived_.draining || stopped_) return absl::UnavailableError(WhyNotReady(EngineState::kDraining));
    RETURN_IF_ERROR(board_->CheckAdmits());
    RETURN_IF_ERROR(room_.Check(requests, board_->num_preempted()));
    for (EngineRequest& request : requests) {
      room_.Add(request);
      arrived_.requests.push_back(std::move(request));
    }
  }
  signal_->Wake();
  return absl::OkStatus();
}

bool CallersMail::Offer(EngineRequest* request) {
  {
    absl::MutexLock lock(&mu_);
    if (arrived_.draining || stopped_ || board_->state() != EngineState::kAwake) return false;
    room_.Add(*request);
    arrived_.requests.push_back(std::move(*request));
  }
  signal_->Wake();
  return true;
}

void CallersMail::Abort(const std::string& request_id) {
  {
    absl::MutexLock lock(&mu_);
    // Only live ids, and each once, so that the list is no longer than the open requests.
    if (!room_.is_live(request_id)) return;
    std::vector<std::string>& aborted = arrived_.aborted;
    if (std::find(aborted.begin(), aborted.end(), request_id) != aborted.end()) return;
    aborted.push_back(request_id);
  }
  signal_->Wake();
}

absl::Status CallersMail::Send(std::shared_ptr<LifecycleCommand> command) {
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return StoppedError();
    arrived_.commands.push_back(std::move(command));
  }
  signal_->Wake();
  return absl::OkStatus();
}

absl::Status CallersMail::SendCallAbort(AbortReply reply) {
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return StoppedError();
    arrived_.call_aborts.push_back(std::move(reply));
  }
  signal_->Wake();
  return absl::OkStatus();
}

bool CallersMail::SendRevival(std::shared_ptr<LifecycleCommand> command) {
  {
    absl::MutexLock lock(&mu_);
    if (arrived_.draining || stopped_ || !board_->BeginRevival()) return false;
    arrived_.commands.push_back(std::move(command));
  }
  signal_->Wake();
  return true;
}

bool CallersMail::Drain(MonotonicTime deadline) {
  bool changed;
  {
    absl::MutexLock lock(&mu_);
    arrived_.draining = true;
    drain_deadline_ = std::min(drain_deadline_, deadline);
    changed = board_->BeginDrain();
  }
  signal_->Wake();
  return changed;
}

bool CallersMail::ends() const {
  absl::MutexLock lock(&mu_);
  return arrived_.draining || stopped_;
}

CallersMail::Queue CallersMail::queue() const {
  absl::MutexLock lock(&mu_);
  return {.num_open = room_.num_live(),
          .num_arrived = static_cast<int32_t>(arrived_.requests.size()),
          .waiting_tokens = room_.waiting_tokens(),
          .oldest_arrival = room_.oldest_arrival()};
}

CallersMail::Arrived CallersMail::Take() {
  absl::MutexLock lock(&mu_);
  const bool draining = arrived_.draining;
  return std::exchange(arrived_, {.draining = draining});
}

std::vector<EngineRequest> CallersMail::TakeRequests() {
  absl::MutexLock lock(&mu_);
  return std::exchange(arrived_.requests, {});
}

std::vector<EngineRequest> CallersMail::HandOver() {
  absl::MutexLock lock(&mu_);
  arrived_.aborted.clear();  // the engine that takes the requests knows of the aborts
  room_.Clear();
  return std::exchange(arrived_.requests, {});
}

bool CallersMail::has_requests() const {
  absl::MutexLock lock(&mu_);
  return !arrived_.requests.empty();
}

MonotonicTime CallersMail::drain_deadline() const {
  absl::MutexLock lock(&mu_);
  return drain_deadline_;
}

void CallersMail::NoteScheduled(const EngineRequest& request) {
  absl::MutexLock lock(&mu_);
  room_.NoteScheduled(request);
}

void CallersMail::Forget(const EngineRequest& request, bool was_scheduled) {
  absl::MutexLock lock(&mu_);
  room_.Remove(request, was_scheduled);
}

void CallersMail::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
  }
  stop_.Stop();
}

}  // namespace somnus
