#pragma once
// The book of losses: the recovery under way, how often the group was lost lately, and which requests may be
// the cause.
//
// Bounds. After max_recoveries losses within recovery_window, without a token in between, the group is given
// up. A request that was in flight at max_recoveries_per_request losses, without getting any further, runs
// alone, and has to end when the group is lost again meanwhile. The book of a request is in its Sequence, and
// moves with the request. Plain state of the loop thread.

#include <cstdint>
#include <deque>

#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/engine/engine_options.h"
#include "coordinator/scheduler/sequence.h"

namespace somnus {

class RecoveryBook {
 public:
  // How a recovery that was under way has ended.
  struct Ended {
    bool was_under_way = false;
    bool was_restart = false;
    absl::Duration duration;
  };

  // `options` are borrowed.
  explicit RecoveryBook(const EngineOptions& options) : options_(options) {}

  bool under_way() const { return under_way_; }
  // The recovery under way is a restart of workers that are well.
  bool restarts() const { return restarts_; }
  // Recoveries that ended well, without restarts.
  int64_t num_recoveries() const { return num_recoveries_; }

  // Counts a loss. False: the group has been lost too often.
  bool MayRecover(MonotonicTime now);
  // Losses so far do not count: the group has computed a token, or an operator brings the group up again.
  void ForgetLosses() { losses_.clear(); }

  void Begin(MonotonicTime now) {
    under_way_ = true;
    began_ = now;
  }
  void BeginRestart(MonotonicTime now) {
    Begin(now);
    restarts_ = true;
  }
  Ended End(MonotonicTime now);
  void NoteRecovered(const Ended& ended) { num_recoveries_ += ended.was_restart ? 0 : 1; }

  // The sequence was in flight at a loss. True: the request was so too often, and has to end.
  bool Suspect(Sequence* sequence) const;
  // Forgets the losses of a sequence that has got beyond the point of the last loss.
  static void Exonerate(Sequence* sequence);

 private:
  const EngineOptions& options_;
  bool under_way_ = false;
  bool restarts_ = false;
  MonotonicTime began_;
  std::deque<MonotonicTime> losses_;  // within the last recovery_window, that have not led to a token
  int64_t num_recoveries_ = 0;
};

}  // namespace somnus
