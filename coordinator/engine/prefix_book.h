#pragma once
// The pins of one engine loop: what is pinned, within which bounds, and what the loop has not been told yet.
//
// Callers see a pin at once; the loop applies the pin between two steps, before requests that came later. The
// blocks that the cache holds of a pin are as of the last step. Thread safe; the loop calls Apply and
// Publish.

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/engine/engine_stats.h"
#include "coordinator/engine/pinned_prefixes.h"
#include "coordinator/scheduler/scheduler.h"

namespace somnus {

struct PinLimits {
  double max_share = 0.25;  // of the KV cache's blocks, that pins may have together
  int32_t max_prefixes = 64;
};

class PrefixBook : public PinnedPrefixes {
 public:
  // The blocks without pins must be enough for a sequence of max_model_len. `wake` is called, by any thread,
  // when the loop has something to apply.
  PrefixBook(const PinLimits& limits, const SchedulerOptions& options, std::function<void()> wake);

  absl::StatusOr<PinnedPrefix> Pin(const PrefixRequest& request) override;
  void Withdraw(const std::string& id) override;
  absl::Status Unpin(const std::string& id) override;
  std::vector<PinnedPrefix> List() const override;

  // Tells the scheduler what has changed since the last call.
  void Apply(Scheduler* scheduler);
  // Takes over what the cache holds, and fills in what the statistics have of it.
  void Publish(const Scheduler& scheduler, EngineStats* stats);

 private:
  struct Entry {
    PinnedPrefix prefix;
    std::vector<int32_t> tokens;
    std::string salt;
    int32_t num_callers = 1;  // of Pin, that have not taken it back
  };
  // A pin, or the end of one.
  struct Change {
    std::string id;
    std::optional<PrefixPin> pin;
  };

  std::deque<Entry>::iterator Find(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckRoom(int64_t num_blocks) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Erase(std::deque<Entry>::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const PinLimits limits_;
  const int32_t block_size_;
  const int32_t max_model_len_;
  const int32_t longest_blocks_;  // of a sequence of max_model_len, at once
  const bool has_prefix_cache_;
  const std::function<void()> wake_;

  mutable absl::Mutex mu_;
  std::deque<Entry> entries_ ABSL_GUARDED_BY(mu_);
  int64_t num_blocks_ ABSL_GUARDED_BY(mu_) = 0;  // of all entries
  std::vector<Change> changes_ ABSL_GUARDED_BY(mu_);
  int32_t total_blocks_ ABSL_GUARDED_BY(mu_) = 0;  // of the cache, as of the last Publish
};

}  // namespace somnus
