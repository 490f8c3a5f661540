#pragma once
// Where the KV blocks of prompts have come from, for /metrics, under vLLM's names. Values; pure.
//
// The sources add up to vllm:prompt_tokens_total. A choice of a prompt whose blocks another choice has
// computed (a fork) counts as a hit: nothing is computed for the choice.

#include <algorithm>
#include <vector>

#include "coordinator/engine/engine_stats.h"
#include "coordinator/metrics/preemption_series.h"

namespace somnus {

inline std::vector<CounterSeries> PromptSourceSeries(const EngineStats& stats) {
  const int64_t cached = std::min(stats.prompt_tokens, stats.prefix_cache_hits + stats.forked_prompt_tokens);
  const int64_t external = std::min(cached, stats.swaps.host_hit_tokens);
  const char* const by_source = "Prompt tokens by the source of their KV blocks.";
  const auto from = [&](const char* source, int64_t count) {
    return CounterSeries{"vllm:prompt_tokens_by_source_total", by_source, {{"source", source}}, count};
  };
  const auto cached_in = [](const char* tier, int64_t count) {
    return CounterSeries{"vllm:prompt_tokens_cached_by_source_total",
                         "Prompt tokens that were not computed, by the memory that had their KV blocks.",
                         {{"source", tier}},
                         count};
  };
  return {from("local_compute", stats.prompt_tokens - cached),
          from("local_cache_hit", cached - external),
          from("external_kv_transfer", external),
          {"vllm:prompt_tokens_cached_total", "Prompt tokens that were not computed.", {}, cached},
          cached_in("device", cached - external),
          cached_in("host", external),
          {"vllm:external_prefix_cache_queries_total",
           "Prompt tokens looked up in host memory, because the device's prefix cache lacked them.",
           {},
           stats.swaps.host_query_tokens},
          {"vllm:external_prefix_cache_hits_total",
           "Prompt tokens whose KV blocks came from host memory.",
           {},
           stats.swaps.host_hit_tokens},
          {"vllm:corrupted_requests_total",
           "Requests that ended because their logits were not finite numbers.",
           {},
           stats.corrupted_requests}};
}

}  // namespace somnus
