#pragma once
// An engine in virtual time: the engine decides the work and the memory of each step; a cost model decides
// how long the step takes. A single step is under way at a time.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/scheduler/scheduler.h"
#include "tools/simulator/cost_model.h"
#include "tools/simulator/serving_load.h"

namespace somnus {

// Where the slots of the KV cache are, in tokens: total = reserved + nobody's. Shared slots count once.
struct KvUse {
  int64_t live = 0;     // hold the keys and values of a token
  int64_t future = 0;   // reserved for tokens that will come
  int64_t surplus = 0;  // reserved for tokens of the sequence that will never come
  // reserved by the allocator, beyond the sequence's request: a buddy's rest, a block's end.
  int64_t rounding = 0;
  int64_t total = 0;
  // Slots that would be held without sharing, and slots that are held.
  int64_t unshared_slots = 0;
  int64_t held_slots = 0;

  int64_t reserved() const { return live + future + surplus + rounding; }
};

struct StepResult {
  // Ids of requests.
  std::vector<int64_t> first_tokens;
  std::vector<int64_t> ended;
};

class SimulatedEngine {
 public:
  virtual ~SimulatedEngine() = default;
  // InvalidArgument for a request that can never be served, which is not queued.
  virtual absl::Status Add(const LoadRequest& request) = 0;
  // Begins a step. Nothing, when there is nothing to compute.
  virtual std::optional<StepLoad> BeginStep() = 0;
  // Ends the step under way.
  virtual void EndStep(StepResult* result) = 0;
  // While a step is under way.
  virtual KvUse kv_use() const = 0;
  virtual int64_t num_running() const = 0;  // requests
  virtual int64_t num_preemptions() const { return 0; }
  virtual int64_t num_swap_preemptions() const { return 0; }  // the part by swap
};

// The options of all engines.
struct EngineOptions {
  int64_t kv_slots = 15728;
  int32_t block_size = 16;
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2560;
  int32_t max_model_len = 2048;
  bool enable_prefix_caching = true;
  PreemptionMode preemption = PreemptionMode::kAuto;  // as served
  // Tokens in host memory: as many as fit into 4 GiB, the coordinator's default, at 0.8 MB a token.
  int64_t swap_slots = 5242;
  int32_t n = 1;      // sequences of each request, which share the prompt where the engine can
  int32_t beams = 0;  // of beam search; 0: the n sequences are sampled
  uint64_t seed = 1;

  int32_t num_sequences() const { return beams > 0 ? beams : n; }
};

}  // namespace somnus
