#pragma once
// How the KV caches of models that are awake together share device memory: whose cache shrinks and whose
// grows.
//
// A pure function of what is known about the models, without a thread and without a clock, as
// residency_policy.h. Each model wants what its open requests need and a quarter more. Where all of that does
// not fit, every model gets its minimum, and the rest is shared evenly among those that want more.
//
// What holds whatever the models do:
// - A cache shrinks only for another one that lacks memory, and never below its minimum or its share.
// - A cache grows only into memory that is free now, and only when it is nearly full.
// - A change is a sixteenth of the whole cache at least, unless less is left; and a cache that was resized
//   stays for min_stay, so that two models that take turns do not resize at every request.

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/time/time.h"
#include "base/monotonic.h"

namespace somnus {

// What the policy knows of one model's cache. Blocks do not count the null block.
struct KvShareView {
  enum class State {
    kAwake,   // its cache can be resized now
    kWaiter,  // asleep; is to wake as soon as there is memory
    kOther,   // left alone; its memory is not in free_bytes
  };
  State state = State::kOther;
  int64_t block_bytes = 1;  // over all ranks
  int64_t other_bytes = 0;  // kWaiter: bytes that a wake-up takes beside the blocks
  int64_t slack_bytes = 0;  // that growth may take beside blocks, because memory comes in chunks
  // kAwake: the bytes that the cache lacks to its full size; growth takes no more, slack included.
  int64_t rest_bytes = std::numeric_limits<int64_t>::max();
  int32_t min_blocks = 0;     // at least 1
  int32_t max_blocks = 0;     // at least min_blocks
  int32_t mapped_blocks = 0;  // that have memory; kWaiter: will have
  int32_t needed_blocks = 0;  // lately: those that are used, and what requests that wait would take
  MonotonicTime last_used;
  MonotonicTime resized_at = -absl::InfiniteDuration();
};

// No flags: they bound how often memory is mapped and released for little, and what a model gets is bounded
// by flags of its own, --min-kv-cache-memory-bytes and --kv-cache-memory-bytes.
struct KvShareOptions {
  double headroom = 0.25;  // beyond what is needed
  double full = 0.9;       // a cache grows when this share of it is needed
  int32_t steps = 16;      // of the whole cache: a change is one of them at least
  absl::Duration min_stay = absl::Seconds(1);
};

enum class KvResizeReason {
  kCacheFull,     // its requests need more
  kOthersLack,    // another model lacks memory
  kRequestsWait,  // of a model that sleeps: it is to wake in the size that its requests need
};
// "cache_full", "others_lack", "requests_wait": the names that metrics use.
const char* KvResizeReasonName(KvResizeReason reason);

struct KvResize {
  int model = 0;
  int32_t blocks = 0;
  int for_model = 0;  // that lacks memory; the model itself where its cache grows

  bool operator==(const KvResize&) const = default;
};

struct KvSharesPlan {
  std::vector<KvResize> resizes;  // all may begin at once
  // Models that will have enough memory once these, or what they lead to, have ended, so that nobody need
  // sleep for them. By model.
  std::vector<bool> served;
  MonotonicTime look_again_at = absl::InfiniteDuration();
};

// `free_bytes`: of device memory, that nobody holds or is promised. Models are named by their index.
KvSharesPlan PlanKvShares(const KvShareOptions& options, MonotonicTime now, int64_t free_bytes,
                          const std::vector<KvShareView>& models);

}  // namespace somnus
