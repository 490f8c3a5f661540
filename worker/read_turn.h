#pragma once
// The turn of calls that read adapters: one call at a time has the turn, and others wait for it with a bound.
// A call whose file system hangs keeps the turn, and no thread besides its own. Thread safe.

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"

namespace somnus {

class ReadTurn {
 public:
  // False: another call has had the turn for all of `patience`. True: the caller has to call Give.
  bool Take(absl::Duration patience) {
    const MonotonicTime deadline = MonotonicNow() + patience;
    while (true) {
      std::shared_ptr<StopSignal> given;
      {
        absl::MutexLock lock(&mu_);
        if (given_ == nullptr) {
          given_ = std::make_shared<StopSignal>();
          return true;
        }
        given = given_;
      }
      if (!given->WaitFor(deadline - MonotonicNow())) return false;
    }
  }
  void Give() {
    absl::MutexLock lock(&mu_);
    std::exchange(given_, nullptr)->Stop();
  }

 private:
  absl::Mutex mu_;
  std::shared_ptr<StopSignal> given_ ABSL_GUARDED_BY(mu_);  // stopped by Give; null: nobody has the turn
};

}  // namespace somnus
