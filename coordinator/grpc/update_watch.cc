#include "coordinator/grpc/update_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/running_clock.h"
#include "base/threads.h"

namespace somnus {
namespace {

constexpr absl::Duration kLongestLook = absl::Milliseconds(200);
// A failed update waits so long for the client's next message, which is answered with the error.
constexpr absl::Duration kLastWords = absl::Seconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<UpdateWatch>> UpdateWatch::Start(const UpdatePace& pace,
                                                                std::function<void()> cancel) {
  std::unique_ptr<UpdateWatch> watch(new UpdateWatch(pace, std::move(cancel)));
  absl::StatusOr<std::thread> thread = StartThread([watch = watch.get()] { watch->Run(); });
  if (!thread.ok()) return thread.status();
  watch->thread_ = *std::move(thread);
  return watch;
}

UpdateWatch::~UpdateWatch() {
  stop_.Stop();
  if (thread_.joinable()) thread_.join();
}

void UpdateWatch::SetWaits(bool waits) {
  absl::MutexLock lock(&mu_);
  const MonotonicTime now = RunningNow();
  if (!waits && silent_since_ != absl::InfiniteDuration() && begun_) waited_ += now - silent_since_;
  silent_since_ = waits ? now : absl::InfiniteDuration();
}

void UpdateWatch::NoteBytes(int64_t total) {
  absl::MutexLock lock(&mu_);
  num_bytes_ = total;
}

void UpdateWatch::NoteBegin() {
  absl::MutexLock lock(&mu_);
  begun_ = true;
}

void UpdateWatch::SetUpdate(std::function<absl::Status()> status) {
  absl::MutexLock lock(&mu_);
  status_ = std::move(status);
}

absl::Status UpdateWatch::reason() const {
  absl::MutexLock lock(&mu_);
  return reason_;
}

absl::Status UpdateWatch::Look() {
  const MonotonicTime now = RunningNow();
  const absl::Duration silence = now - silent_since_;
  if (!begun_ && silence > pace_.begin_timeout)
    return absl::DeadlineExceededError(
        absl::StrCat("begin: it has not come within ", absl::FormatDuration(pace_.begin_timeout)));
  if (begun_ && silence > pace_.max_silence)
    return absl::DeadlineExceededError(
        absl::StrCat("the client has sent nothing for ", absl::FormatDuration(pace_.max_silence)));
  const absl::Duration counted = waited_ + std::max(silence, absl::ZeroDuration()) - pace_.max_silence;
  if (begun_ && absl::ToDoubleSeconds(counted) * static_cast<double>(pace_.min_bytes_per_s) >
                    static_cast<double>(num_bytes_))
    return absl::DeadlineExceededError(absl::StrCat(
        "the client has sent ", num_bytes_, " bytes of tensors in ",
        absl::FormatDuration(counted + pace_.max_silence), ", which is below --min-weight-update-rate"));
  const absl::Status ended = status_ ? status_() : absl::OkStatus();
  if (!ended.ok()) ended_at_ = std::min(ended_at_, now);
  return now - ended_at_ > kLastWords ? ended : absl::OkStatus();
}

void UpdateWatch::Run() {
  while (!stop_.WaitFor(std::min({pace_.max_silence / 10, pace_.begin_timeout / 10, kLongestLook}))) {
    absl::MutexLock lock(&mu_);
    if (silent_since_ == absl::InfiniteDuration() || !reason_.ok()) continue;
    reason_ = Look();
    if (!reason_.ok()) cancel_();
  }
}

}  // namespace somnus
