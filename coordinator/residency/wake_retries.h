#pragma once
// Decides when a sleeping model is woken again for requests after a wake-up that has failed: after a pause
// that doubles with every failure. After max_tries failures in a row, wake-ups are given up: the requests
// that wait get the error, and so do requests that come before the next pause is over; the first request
// after the pause is a new try. A wake-up that only lacked memory does not count: memory may come back.
//
// All times are times of a monotonic clock. A value; not thread safe.

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/monotonic.h"

namespace somnus {

// The beginning of WakeRetries::error.
inline constexpr char kCouldNotBeWoken[] = "The model sleeps and could not be woken: ";

struct WakeRetryOptions {
  absl::Duration first_pause = absl::Seconds(1);
  // No flags: operators mend the cause of failures, and all pauses are short beside such repairs.
  absl::Duration longest_pause = absl::Seconds(30);    // while requests wait; afterwards the shortest
  absl::Duration longest_given_up = absl::Minutes(5);  // afterwards
  int max_tries = 4;                                   // failures until wake-ups are given up; 0: never
};

class WakeRetries {
 public:
  explicit WakeRetries(const WakeRetryOptions& options) : options_(options), pause_(options.first_pause) {}

  // A wake-up for requests has failed. `error` is kept.
  void NoteFailed(MonotonicTime now, const absl::Status& error);
  // The wake-up was not tried (declined.h), and is decided again after the same pauses.
  void NoteDeclined(MonotonicTime now);
  void NoteWoken();
  // An operator's call may have mended the cause of the failures: the next try comes at once. error() stays
  // until a wake-up ends well.
  void Restart();

  MonotonicTime retry_at() const { return retry_at_; }
  bool gave_up() const { return options_.max_tries > 0 && num_failures_ >= options_.max_tries; }
  // Requests that come now are refused with error().
  bool Refuses(MonotonicTime now) const { return gave_up() && now < retry_at_; }
  // The last wake-up's error for clients: Unavailable. Ok: the last wake-up ended well.
  const absl::Status& error() const { return error_; }

 private:
  void Pause(MonotonicTime now);

  WakeRetryOptions options_;
  absl::Duration pause_;
  MonotonicTime retry_at_ = -absl::InfiniteDuration();
  int num_failures_ = 0;  // that count, in a row
  absl::Status error_;
};

}  // namespace somnus
