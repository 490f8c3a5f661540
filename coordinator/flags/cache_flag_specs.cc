// The flags about the KV cache and the scheduler, for the table of the coordinator's flags.
#include <utility>
#include <vector>

#include "coordinator/flags/choice_names.h"
#include "coordinator/flags/flag_setters.h"
#include "coordinator/flags/flag_specs.h"

namespace somnus {
namespace {

constexpr char kDTypes[] =
    "auto (the model's), bfloat16, float16, float32, fp8 = fp8_e4m3 or int8 = int8_per_token_head, with a "
    "scale for each token and head";

// Flags of the engine loop and the loop's queue.
std::vector<Flag> LoopFlags(Flags* f) {
  return {
      Flag::Switch("async-scheduling", &f->engine.async_scheduling,
                   "schedule the next step before the reply to this one")
          .Alias("overlap"),
      Flag::Int("max-num-waiting", &f->engine.queue.max_num_waiting, 1, 1 << 20,
                "requests that may queue; more are refused"),
      Flag::Int("max-num-waiting-tokens", &f->engine.queue.max_num_waiting_tokens, 1, int64_t{1} << 40,
                "prompt tokens of queued requests together"),
      Flag::Bytes("max-waiting-bytes", &f->engine.queue.max_waiting_bytes, kMinBytesFlag, int64_t{1} << 40,
                  "memory that queued requests hold together"),
  };
}

}  // namespace

FlagGroup CacheFlags(Flags* f) {
  const auto set_dtype = [f](const std::string& value) { return SetKvCacheDType(value, f); };
  FlagGroup group = {
      "KV cache and scheduling",
      {
          Flag::Int("block-size", &f->engine.scheduler.blocks.block_size, 1, 1024,
                    "tokens of a KV cache block"),
          Flag::Bytes("kv-cache-memory-bytes", &f->kv_cache_memory_bytes, 1, int64_t{1} << 60,
                      "KV cache of each worker")
              .Default("chosen by --memory-utilization")
              .Alias("kv-cache-memory"),
          Flag::Bytes(
              "min-kv-cache-memory-bytes", &f->min_kv_cache_memory_bytes, 0, int64_t{1} << 50,
              "of each worker, that the KV cache keeps when other models need memory; at least what one "
              "sequence of --max-model-len takes at once (--elastic-kv-cache)"),
          Flag::Custom("kv-cache-dtype", "TYPE", "auto", set_dtype, kDTypes),
          Flag::Switch("enable-prefix-caching", &f->engine.scheduler.blocks.enable_prefix_caching,
                       "share the KV cache of equal prompt prefixes"),
          Flag::Int(
              "max-passed-contents", &f->engine.scheduler.blocks.max_passed_contents, 0, 1 << 24,
              "lost blocks whose tokens the prefix cache keeps, about 250 bytes each, where every layer "
              "has a window: a beginning of at most so many blocks is found by its last ones"),
          Flag::Number("max-pinned-prefix-share", &f->engine.pins.max_share, 0, 1,
                       "of the KV cache, that pinned prefixes may have together (POST /v1/prefixes)"),
          Flag::Int("max-pinned-prefixes", &f->engine.pins.max_prefixes, 0, 1024,
                    "prefixes that may be pinned at once"),
          Flag::Int(
              "max-kv-events", &f->max_kv_events, 0, 1 << 26,
              "changes of the prefix cache, in blocks, that clients who follow it by GET /kv_events or "
              "KvEventService may be behind; they have the tokens of prompts, in host memory; 0: nobody can "
              "follow it"),
          Flag::Int("max-num-seqs", &f->engine.scheduler.max_num_seqs, 1, 4096, "sequences that run at once"),
          Flag::Int("max-num-batched-tokens", &f->engine.scheduler.max_num_batched_tokens, 1, 1 << 20,
                    "tokens of one step"),
          Flag::OneOf("scheduling-policy", &f->engine.scheduler.policy, SchedulingPolicyNames(),
                      "first come, first served, or by the requests' priority, lower first, which displaces "
                      "running requests of a worse one when there is no room otherwise"),
          Flag::Int(
              "priority-aging-steps", &f->engine.scheduler.priority_aging_steps, 0, kMaxIntFlag / 2,
              "under priority: waiting for that many steps improves a request's priority by one; 0: never"),
          Flag::OneOf<std::string>("fairness", &f->fairness, {{"none", "none"}, {"user", "user"}},
                                   "user: among requests of equal priority the one goes first whose user has "
                                   "had the least service"),
          Flag::Int("max-fair-users", &f->max_fair_users, 1, 1 << 20,
                    "users without requests whose service is remembered (--fairness=user)"),
          Flag::Number("max-user-queue-share", &f->max_user_queue_share, 0.001, 1,
                       "of the bounds of the queue, what one user's requests may take (--fairness=user)"),
          Flag::OneOf(
              "preemption", &f->engine.scheduler.preemption, PreemptionModeNames(),
              "how a request that runs makes room for another one: its KV blocks wait in host memory, as far "
              "as --swap-space has room, or it is computed again; auto: what costs less, by the times of "
              "steps, but with --host-memory-budget recompute"),
          Flag::Int("max-num-partial-prefills", &f->engine.scheduler.max_num_partial_prefills, 1, 4096,
                    "prompts at once that one step does not complete"),
          Flag::Int("max-long-partial-prefills", &f->engine.scheduler.max_long_partial_prefills, 1, 4096,
                    "long ones among them, without those that a shorter one overtakes; prompts that are not "
                    "long go ahead of long ones beyond"),
          Flag::Int(
              "long-prefill-token-threshold", &f->engine.scheduler.long_prefill_token_threshold, 0,
              kMaxIntFlag / 2,
              "a prompt with more tokens to compute is long: while others need the step it gets no more of "
              "it; 0: half of --max-num-batched-tokens"),
      }};
  for (Flag& flag : LoopFlags(f)) group.flags.push_back(std::move(flag));
  return group;
}

}  // namespace somnus
