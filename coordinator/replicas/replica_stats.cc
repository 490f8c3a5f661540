#include "coordinator/replicas/replica_stats.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

void AddBytes(const TagBytes& bytes_by_tag, TagBytes* sum) {
  for (const auto& [tag, bytes] : bytes_by_tag) (*sum)[tag] += bytes;
}

// Adds memory, blocks and requests of this moment.
void AddHoldings(const EngineStats& one, EngineStats* sum) {
  AddBytes(one.resident_bytes, &sum->resident_bytes);
  AddBytes(one.host_bytes, &sum->host_bytes);
  AddBytes(one.sleeping_bytes, &sum->sleeping_bytes);
  sum->num_running += one.num_running;
  sum->num_waiting += one.num_waiting;
  sum->total_blocks += one.total_blocks;
  sum->free_blocks += one.free_blocks;
  sum->used_blocks += one.used_blocks;
  sum->block_size = one.block_size;
  sum->mapped_blocks += one.mapped_blocks;
  sum->longest_blocks += one.longest_blocks;
  sum->max_blocks += one.max_blocks;
  sum->waiting_tokens += one.waiting_tokens;
  sum->total_host_blocks += one.total_host_blocks;
  sum->used_host_blocks += one.used_host_blocks;
  sum->cached_host_blocks += one.cached_host_blocks;
  sum->keepable_bytes += one.keepable_bytes;
  sum->pinned_blocks += one.pinned_blocks;
  sum->decode_step_time = std::max(sum->decode_step_time, one.decode_step_time);
  sum->group_epoch = std::max(sum->group_epoch, one.group_epoch);
}

// Adds the counters since the start.
void AddCounters(const EngineStats& one, EngineStats* sum) {
  sum->num_preemptions += one.num_preemptions;
  sum->preemptions.Add(one.preemptions);
  sum->swaps.Add(one.swaps);
  sum->prompt_tokens += one.prompt_tokens;
  sum->forked_prompt_tokens += one.forked_prompt_tokens;
  sum->generation_tokens += one.generation_tokens;
  sum->corrupted_requests += one.corrupted_requests;
  sum->copied_blocks += one.copied_blocks;
  sum->watermark_refusals += one.watermark_refusals;
  sum->num_first_scheduled += one.num_first_scheduled;
  sum->queue_time += one.queue_time;
  sum->prefix_cache_queries += one.prefix_cache_queries;
  sum->prefix_cache_hits += one.prefix_cache_hits;
  sum->prefix_cache_misses.Add(one.prefix_cache_misses);
  sum->cached_blocks.Add(one.cached_blocks);
  sum->speculation.Add(one.speculation);
  sum->num_forks += one.num_forks;
  sum->pin_releases.Add(one.pin_releases);
  sum->num_cache_grows += one.num_cache_grows;
  sum->num_cache_shrinks += one.num_cache_shrinks;
  sum->given_back_blocks += one.given_back_blocks;
  sum->kept_blocks += one.kept_blocks;
  sum->kept_tokens += one.kept_tokens;
  sum->num_steps += one.num_steps;
  sum->num_recoveries += one.num_recoveries;
}

// Memory and weights, from a live replica.
void AddLive(const EngineStats& one, EngineStats* sum) {
  if (one.sleep_level < sum->sleep_level) {
    sum->sleep_level = one.sleep_level;
    sum->residency = one.residency;
  }
  if (one.weights_version > sum->weights_version) {
    sum->weights_version = one.weights_version;
    sum->weights_source = one.weights_source;
  }
  sum->only_copy |= one.only_copy;
  sum->needs_weights |= one.needs_weights;
  sum->paused = sum->paused && one.paused;
  sum->gave_up_stale_weights = sum->gave_up_stale_weights && one.gave_up_stale_weights;
}

// For the report of the engine's state: the reasons of a replica in this state, where there is one.
void AddReasons(const EngineStats& one, EngineStats* sum) {
  if (sum->note.why.empty() || (one.state == sum->state && !one.note.why.empty()))
    sum->note.why = one.note.why;
  if (sum->lifecycle_call.name.empty()) sum->lifecycle_call = one.lifecycle_call;
  sum->may_revive |= one.state == EngineState::kFailed && one.may_revive;
  if (one.state != EngineState::kAwake || one.stall.ok() || !sum->stall.ok()) return;
  sum->stall = one.stall;
  sum->call_stalls = one.call_stalls;
  sum->stalled_since = one.stalled_since;
}

std::string Errors(const std::vector<EngineStats>& replicas) {
  std::string errors;
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (replicas[i].error.empty()) continue;
    absl::StrAppend(&errors, errors.empty() ? "" : "; ", "replica ", i, ": ", replicas[i].error);
  }
  return errors;
}

ReplicaStats OfOne(const EngineStats& one) {
  return {.state = one.state,
          .error = one.error,
          .num_running = one.num_running,
          .num_waiting = one.num_waiting,
          .num_recoveries = one.num_recoveries,
          .group_epoch = one.group_epoch};
}

}  // namespace

EngineStats SumOfReplicas(const std::vector<EngineStats>& replicas, EngineState state, absl::Time since) {
  EngineStats sum;
  sum.state = state;
  sum.note.since = since;
  sum.sleep_level = std::numeric_limits<int>::max();
  sum.paused = true;
  sum.gave_up_stale_weights = true;
  bool any_lives = false, any_serves = false;
  for (const EngineStats& one : replicas) {
    if (one.state != EngineState::kFailed) {
      any_lives = true;
      AddLive(one, &sum);
    }
    any_serves |= one.state == EngineState::kAwake && one.stall.ok();
    AddReasons(one, &sum);
    AddHoldings(one, &sum);
    AddCounters(one, &sum);
    sum.replicas.push_back(OfOne(one));
  }
  if (!any_lives || state == EngineState::kFailed) {
    sum.sleep_level = 0;
    sum.paused = false;
  }
  if (!any_lives) sum.gave_up_stale_weights = false;
  if (state == EngineState::kFailed) sum.error = Errors(replicas);
  if (any_serves) {
    sum.stall = absl::OkStatus();
    sum.call_stalls = false;
    sum.stalled_since = absl::InfinitePast();
  } else if (sum.stall.ok()) {  // of an engine that was awake a moment ago
    sum.stall = absl::UnavailableError(WhyNotReady(EngineState::kRecovering));
    sum.stalled_since = since;
  }
  return sum;
}

}  // namespace somnus
