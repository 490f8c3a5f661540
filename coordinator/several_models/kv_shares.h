#pragma once
// How the KV caches of models that are awake together share device memory: which cache shrinks and which
// cache grows.
//
// A pure function of the models' views, without a thread and without a clock, as residency_policy.h. Each
// model wants the blocks that the model's open requests need, and a quarter more. Where the blocks of all
// models do not fit, every model gets its minimum, and the rest is shared evenly among the models that want
// more.
//
// Rules that hold in every case:
// - A cache shrinks only for a cache of another model that lacks memory, and never below the minimum or the
//   share of the cache that shrinks.
// - A cache grows only into memory that is free now, and only when the cache is nearly full.
// - A change is a sixteenth of the whole cache at least, unless less is left; and a cache that was resized
//   stays for min_stay, so that two models that take turns do not resize at every request.

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/time/time.h"
#include "base/monotonic.h"

namespace somnus {

// The policy's view of one model's cache. Blocks do not count the null block.
struct KvShareView {
  enum class State {
    kAwake,   // the cache can be resized now
    kWaiter,  // asleep; is to wake as soon as there is memory
    kOther,   // left alone; the memory of the cache is not in free_bytes
  };
  State state = State::kOther;
  // The cache has memory, so growth takes memory at once: of every awake model, and of a waiter whose other
  // tags sleep.
  bool is_mapped = false;
  int64_t block_bytes = 1;  // over all ranks
  int64_t other_bytes = 0;  // kWaiter: bytes that a wake-up takes beside the blocks
  int64_t slack_bytes = 0;  // that growth may take beside blocks, because memory comes in chunks
  // Of a mapped cache: the bytes that the cache lacks to its full size; growth takes no more, slack included.
  int64_t rest_bytes = std::numeric_limits<int64_t>::max();
  int32_t min_blocks = 0;     // at least 1
  int32_t max_blocks = 0;     // at least min_blocks
  int32_t mapped_blocks = 0;  // blocks that have memory; kWaiter: blocks that will have memory
  int32_t needed_blocks = 0;  // lately: blocks that are used, and blocks that waiting requests would take
  MonotonicTime last_used;
  MonotonicTime resized_at = -absl::InfiniteDuration();
};

// No flags: these options bound how often memory is mapped and released for little. The memory of a model is
// bounded by flags: --min-kv-cache-memory-bytes and --kv-cache-memory-bytes.
struct KvShareOptions {
  double headroom = 0.25;  // beyond the need
  double full = 0.9;       // a cache grows when this share of the cache is needed
  int32_t steps = 16;      // of the whole cache: a change is one step at least
  absl::Duration min_stay = absl::Seconds(1);
};

enum class KvResizeReason {
  kCacheFull,     // the model's requests need more
  kOthersLack,    // another model lacks memory
  kRequestsWait,  // the model sleeps, and is to wake with a cache of the size that the model's requests need
};
// "cache_full", "others_lack", "requests_wait": the names that metrics use.
const char* KvResizeReasonName(KvResizeReason reason);

struct KvResize {
  int model = 0;
  int32_t blocks = 0;
  int for_model = 0;  // the model that lacks memory; `model` itself where its cache grows

  bool operator==(const KvResize&) const = default;
};

struct KvSharesPlan {
  std::vector<KvResize> resizes;  // all may begin at once
  // By model: true if these resizes, or resizes that follow from these, free enough memory for the model, so
  // that no model has to sleep.
  std::vector<bool> served;
  MonotonicTime look_again_at = absl::InfiniteDuration();
};

// `free_bytes`: device memory that no model holds or is promised. Models are named by their index.
KvSharesPlan PlanKvShares(const KvShareOptions& options, MonotonicTime now, int64_t free_bytes,
                          const std::vector<KvShareView>& models);

}  // namespace somnus
