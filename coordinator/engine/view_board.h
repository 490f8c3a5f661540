#pragma once
// Where an engine loop leaves its picture (engine_view.h) for those who watch. A loop draws only when
// somebody has asked, and not more often than once in kViewInterval: who asks gets the last picture at once,
// and the next one a moment later. Without watchers the loop reads one flag in each turn.
//
// Thread safe.

#include <atomic>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/engine/engine_view.h"

namespace somnus {

inline constexpr absl::Duration kViewInterval = absl::Milliseconds(250);

class ViewBoard {
 public:
  // For watchers: the last picture, or null. Sets `wakes` where the loop should be woken to draw a new one.
  std::shared_ptr<const EngineView> Look(MonotonicTime now, bool* wakes) {
    absl::MutexLock lock(&mu_);
    const bool is_old = view_ == nullptr || now - view_->taken >= kViewInterval;
    *wakes = is_old && !wanted_.exchange(true);
    return view_;
  }

  // For the loop.
  bool wanted() const { return wanted_.load(std::memory_order_relaxed); }
  void Show(EngineView view) {
    auto shown = std::make_shared<const EngineView>(std::move(view));
    absl::MutexLock lock(&mu_);
    view_.swap(shown);  // the old picture is freed without the lock
    wanted_ = false;
  }

 private:
  std::atomic<bool> wanted_{false};
  absl::Mutex mu_;
  std::shared_ptr<const EngineView> view_ ABSL_GUARDED_BY(mu_);
};

}  // namespace somnus
