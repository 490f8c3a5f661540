#pragma once
// An engine in virtual time: it decides what each step computes and which memory that takes; a cost model
// decides how long the step takes. One step is under way at a time.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/scheduler/scheduler.h"
#include "tools/simulator/cost_model.h"
#include "tools/simulator/serving_load.h"

namespace somnus {

// Where the slots of the KV cache are, in tokens: total = reserved + nobody's. What is shared counts once.
struct KvUse {
  int64_t live = 0;     // hold the keys and values of a token
  int64_t future = 0;   // reserved for tokens that will come
  int64_t surplus = 0;  // reserved for tokens of the sequence that will never come
  // By the allocator, beyond what the sequence asked for: a buddy's rest, a block's end.
  int64_t rounding = 0;
  int64_t total = 0;
  // As if nothing was shared, and as it is: both in slots.
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
  // InvalidArgument for a request that can never be served: it is not queued.
  virtual absl::Status Add(const LoadRequest& request) = 0;
  // Begins a step. Nothing, when there is nothing to compute.
  virtual std::optional<StepLoad> BeginStep() = 0;
  // Ends the step under way.
  virtual void EndStep(StepResult* result) = 0;
  // While a step is under way.
  virtual KvUse kv_use() const = 0;
  virtual int64_t num_running() const = 0;  // requests
  virtual int64_t num_preemptions() const { return 0; }
  virtual int64_t num_swap_preemptions() const { return 0; }  // of these, by swap
};

// What all engines are made of.
struct EngineOptions {
  int64_t kv_slots = 15728;
  int32_t block_size = 16;
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2560;
  int32_t max_model_len = 2048;
  bool enable_prefix_caching = true;
  PreemptionMode preemption = PreemptionMode::kAuto;  // as served
  // Tokens in host memory: those of 4 GiB, which the coordinator takes by default, where one has 0.8 MB.
  int64_t swap_slots = 5242;
  int32_t n = 1;      // sequences of each request, which share its prompt where the engine can
  int32_t beams = 0;  // of beam search; 0: the n sequences are sampled
  uint64_t seed = 1;

  int32_t num_sequences() const { return beams > 0 ? beams : n; }
};

}  // namespace somnus
