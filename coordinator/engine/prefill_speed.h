#pragma once
// How fast prompts are computed, measured: from it follows when a request that waits has its first token.
//
// Steps of more tokens make more of each second, so steps are measured by size class, which is a power of two
// of prompt tokens. A class counts from its second step on: the first one may capture graphs or touch memory
// for the first time. Its speed is tokens over seconds of its steps, each of which counts an eighth less than
// the one after it; sums, so that a reply that was handled late, and the next one, which then seems quick,
// make up for each other. A measurement that is older than kLife is not used: where all requests are refused
// because of a speed, some request must get through after a while and measure the speed again.
//
// An estimate is a lower bound, as far as a measure can be one: where the class of a backlog was not
// measured, the next larger one's speed is taken, which is higher; where none is larger, there is no
// estimate.
//
// A value without a clock; not thread safe.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "base/monotonic.h"

namespace somnus {

class PrefillSpeed {
 public:
  static constexpr absl::Duration kLife = absl::Seconds(30);

  // `max_step_tokens`: of one step, at least 1.
  explicit PrefillSpeed(int32_t max_step_tokens) : max_step_tokens_(max_step_tokens) {}

  // A step with that many prompt tokens took `duration`.
  void Observe(int32_t num_tokens, absl::Duration duration, MonotonicTime now) {
    SizeClass& size = classes_[ClassOf(num_tokens)];
    if (now - size.seen > kLife) size = {};
    size.seen = now;
    if (++size.num_steps == 1) return;
    size.tokens += num_tokens - size.tokens / 8;
    size.seconds += absl::ToDoubleSeconds(duration) - size.seconds / 8;
  }

  // The time that so many prompt tokens take at least, in as many steps as they need. Not set: nobody can
  // tell.
  std::optional<absl::Duration> TimeFor(int64_t num_tokens, MonotonicTime now) const {
    for (size_t i = ClassOf(num_tokens); i < classes_.size(); ++i) {
      const SizeClass& size = classes_[i];
      const bool is_known = size.num_steps > 1 && now - size.seen <= kLife;
      if (is_known) return absl::Seconds(size.seconds / size.tokens * static_cast<double>(num_tokens));
    }
    return std::nullopt;
  }

 private:
  struct SizeClass {
    int64_t num_steps = 0;
    double tokens = 0;
    double seconds = 0;
    MonotonicTime seen = -absl::InfiniteDuration();  // its last step
  };

  size_t ClassOf(int64_t num_tokens) const {
    return static_cast<size_t>(
        std::bit_width(static_cast<uint64_t>(std::min<int64_t>(num_tokens, max_step_tokens_))));
  }

  int32_t max_step_tokens_;
  std::array<SizeClass, 33> classes_;
};

}  // namespace somnus
