#include "base/heartbeat.h"

#include <pthread.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/running_clock.h"

namespace somnus {
namespace {

constexpr size_t kMaxThreadName = 15;
constexpr absl::Duration kLongestTick = absl::Milliseconds(500);

thread_local const Heartbeat* t_heartbeat = nullptr;

}  // namespace

Heartbeats& Heartbeats::OfProcess() {
  static Heartbeats* const heartbeats = new Heartbeats(RunningNow);
  return *heartbeats;
}

void Heartbeats::Watch(absl::Duration limit) { limit_ns_ = absl::ToInt64Nanoseconds(limit); }

Heartbeats::Silence Heartbeats::Longest() const {
  const MonotonicTime now = now_();
  std::map<const void*, Silence> least;  // of a pool, the liveliest thread
  const std::lock_guard<std::mutex> lock(mu_);
  for (const Heartbeat* loop : loops_) {
    const absl::Duration since = now - absl::Nanoseconds(loop->last_ns_.load());
    const absl::Duration late = since - absl::Nanoseconds(loop->bound_ns_.load());
    const Silence one = {loop->name_, std::max(late, absl::ZeroDuration()), since};
    const auto [found, is_new] = least.emplace(loop->pool_ == nullptr ? loop : loop->pool_, one);
    if (!is_new && one.late < found->second.late) found->second = one;
  }
  Silence longest;
  for (const auto& [pool, one] : least) {
    if (one.late > longest.late) longest = one;
  }
  return longest;
}

absl::Status Heartbeats::Check() const {
  const absl::Duration limit = absl::Nanoseconds(limit_ns_.load());
  const Silence longest = Longest();
  if (limit <= absl::ZeroDuration() || longest.late <= limit) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      longest.loop, ": no sign of life since ",
      absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now() - longest.since, absl::UTCTimeZone()), ", for ",
      absl::FormatDuration(absl::Floor(longest.since, absl::Seconds(1))), " (the limit is ",
      absl::FormatDuration(limit), "); if that lasts, only a restart of the process ends it"));
}

absl::Duration Heartbeats::LongestSilence() const { return Longest().late; }

Heartbeat::Heartbeat(absl::string_view of, absl::string_view loop, const void* pool, Heartbeats* all)
    : name_(absl::StrCat(of, loop)),
      pool_(pool),
      all_(all->limit_ns_.load() > 0 ? all : nullptr),
      outer_(t_heartbeat) {
  if (all_ == nullptr) return;
  Beat();
  t_heartbeat = this;
  pthread_setname_np(pthread_self(), std::string(loop.substr(0, kMaxThreadName)).c_str());
  const std::lock_guard<std::mutex> lock(all_->mu_);
  all_->loops_.insert(this);
}

Heartbeat::~Heartbeat() {
  if (all_ == nullptr) return;
  t_heartbeat = outer_;
  const std::lock_guard<std::mutex> lock(all_->mu_);
  all_->loops_.erase(this);
}

void Heartbeat::Beat() const {
  if (all_ != nullptr) last_ns_ = absl::ToInt64Nanoseconds(all_->now_());
}

const Heartbeat* Heartbeat::OfThread() { return t_heartbeat; }

absl::Duration Heartbeat::tick() const {
  return std::min(kLongestTick, absl::Nanoseconds(all_->limit_ns_.load()) / 4);
}

Heartbeat::Wait::Wait(absl::Duration bound) : beat_(Heartbeat::OfThread()) {
  if (beat_ == nullptr) return;
  before_ns_ = beat_->bound_ns_.exchange(absl::ToInt64Nanoseconds(bound));
  beat_->Beat();
}

// The time of the sign goes first, so that a look in between sees no late loop.
Heartbeat::Wait::~Wait() {
  if (beat_ == nullptr) return;
  beat_->Beat();
  beat_->bound_ns_ = before_ns_;
}

}  // namespace somnus
