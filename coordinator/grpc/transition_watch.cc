#include "coordinator/grpc/transition_watch.h"

#include <algorithm>
#include <optional>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/monotonic.h"
#include "coordinator/grpc/control_fields.h"

namespace somnus {
namespace {

constexpr double kDefaultInterval = 0.5, kLeastInterval = 0.05, kMostInterval = 60;
// How often a call that waits looks whether the call was cancelled: the sync API cannot wake the call.
constexpr absl::Duration kCancelPoll = absl::Milliseconds(20);

// False: the call was cancelled.
bool Wait(const grpc::ServerContext& context, absl::Duration interval) {
  const MonotonicTime end = MonotonicNow() + interval;
  while (!context.IsCancelled()) {
    const absl::Duration left = end - MonotonicNow();
    if (left <= absl::ZeroDuration()) return true;
    absl::SleepFor(std::min(left, kCancelPoll));
  }
  return false;
}

bool HasEnded(const v1::TransitionProgress& progress) {
  return progress.phase() == "committed" || progress.phase() == "aborted";
}

// The state is read first: where the state says that the transition is over, the ranks say so, too.
v1::WatchTransitionResponse Look(const ServedModel& model) {
  v1::WatchTransitionResponse response;
  response.set_state(ToProto(model.engine->state()));
  if (!model.rank_status) return response;
  for (v1::RankStatus& rank : model.rank_status()) {
    v1::WatchTransitionResponse::RankProgress* const of_rank = response.add_ranks();
    of_rank->set_replica(rank.replica());
    of_rank->set_rank(rank.rank());
    if (rank.has_transition()) *of_rank->mutable_progress() = std::move(*rank.mutable_transition());
  }
  return response;
}

bool IsUnderWay(const v1::WatchTransitionResponse& response) {
  if (response.state() == v1::ENGINE_STATE_FAILED) return false;  // nobody will end the transition
  if (response.state() == v1::ENGINE_STATE_FALLING_ASLEEP || response.state() == v1::ENGINE_STATE_WAKING)
    return true;
  return std::any_of(response.ranks().begin(), response.ranks().end(),
                     [](const auto& rank) { return rank.has_progress() && !HasEnded(rank.progress()); });
}

}  // namespace

grpc::Status TransitionWatch::Run(const grpc::ServerContext& context,
                                  const v1::WatchTransitionRequest& request, const ServedModel& model,
                                  Writer* writer) {
  const double interval = request.has_interval_s() ? request.interval_s() : kDefaultInterval;
  if (!(interval >= kLeastInterval && interval <= kMostInterval)) {
    return {grpc::StatusCode::INVALID_ARGUMENT,
            absl::StrCat("interval_s: must be from ", kLeastInterval, " to ", kMostInterval)};
  }
  if (!Enter()) {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED,
            absl::StrCat(max_watchers_, " clients watch already, and no more may")};
  }
  const absl::Cleanup leave = [this] { Leave(); };
  while (true) {
    const v1::WatchTransitionResponse response = Look(model);
    if (!writer->Write(response)) break;
    const bool goes_on =
        request.follow() ? response.state() != v1::ENGINE_STATE_DRAINING : IsUnderWay(response);
    if (!goes_on) return grpc::Status::OK;
    if (!Wait(context, absl::Seconds(interval))) break;
  }
  return {grpc::StatusCode::CANCELLED, "the client has left"};
}

bool TransitionWatch::Enter() {
  absl::MutexLock lock(&mu_);
  if (num_watchers_ == max_watchers_) return false;
  ++num_watchers_;
  return true;
}

void TransitionWatch::Leave() {
  absl::MutexLock lock(&mu_);
  --num_watchers_;
}

}  // namespace somnus
