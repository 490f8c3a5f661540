#pragma once
// The options of a Scheduler. Plain data.

#include <algorithm>
#include <cstdint>
#include <memory>

#include "coordinator/block_manager/block_manager_options.h"
#include "coordinator/scheduler/speculation.h"
#include "coordinator/scheduler/user_accounts.h"
#include "proto/limits.h"

namespace somnus {

enum class SchedulingPolicy { kFcfs, kPriority };
enum class PreemptionMode { kAuto, kSwap, kRecompute };
// Whether cached blocks go to the host tier before the device loses them. kAuto: where copying costs less
// than computing again, by the prices.
enum class HostPrefixCaching { kOff, kAuto, kOn };

struct SchedulerOptions {
  int32_t max_num_seqs = 128;            // slots
  int32_t max_num_batched_tokens = 512;  // the token budget of one step
  int32_t max_model_len = 2048;
  int64_t max_sequence_bytes = kMaxSequenceBytes;  // of a step's request; a larger sequence is refused
  // The bytes of new sequences, and of prompt log-probabilities and pooled vectors.
  int64_t step_bytes = kStepBytes;
  int64_t pooled_bytes = 16 << 10;  // of one pooled vector in a step's reply
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  PreemptionMode preemption = PreemptionMode::kAuto;  // without a host tier always by recompute
  HostPrefixCaching host_prefix_caching = HostPrefixCaching::kOff;
  int32_t max_step_stores = 16;              // cached blocks that a step copies to the host tier
  int32_t max_num_partial_prefills = 2;      // prompts that one step does not complete, at least 1
  int32_t max_long_partial_prefills = 1;     // long prompts among these prompts, at least 1
  int32_t long_prefill_token_threshold = 0;  // longer is long; 0: half of max_num_batched_tokens
  int32_t priority_aging_steps = 512;        // waited for each better priority; 0: no aging
  int32_t max_loras = 1;                     // different adapters that run at once
  int32_t mask_threads = 0;                  // for constrained sequences; 0: a quarter of the CPUs, 1 to 8
  std::shared_ptr<UserAccounts> accounts;    // null: users are not told apart
  SpeculationOptions speculation;
  BlockManagerOptions blocks;
  // Of the workers' pipeline. With several, a sampled token comes back to the workers with the step that
  // computes that token: a sequence decodes in one step in flight at most, and each step decodes a part of
  // the sequences, so that as many steps as stages have work.
  int32_t num_stages = 1;
  // Whether as many steps as stages are in flight. Without, each step decodes all sequences: with a part the
  // first sequences would be due again each time, and the last sequences would wait for their end.
  bool fills_stages = true;
};

// The block manager's options, with the step's size that the scheduler decides.
inline BlockManagerOptions BlockOptionsOf(const SchedulerOptions& options) {
  BlockManagerOptions blocks = options.blocks;
  blocks.max_step_tokens = options.max_num_batched_tokens;
  return blocks;
}

// The most blocks that a sequence of max_model_len has at once.
inline int32_t BlocksOfLongest(const SchedulerOptions& options) {
  const int32_t block_size = options.blocks.block_size;
  const int64_t all = (int64_t{options.max_model_len} + block_size - 1) / block_size;
  const int64_t reach = options.blocks.attention_reach;
  const int64_t at_once = WindowBlocks(reach, options.max_num_batched_tokens, block_size);
  return static_cast<int32_t>(reach == 0 ? all : std::min(all, at_once));
}

}  // namespace somnus
