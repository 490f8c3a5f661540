#pragma once
// The counters of the prefix cache, for /metrics. Values; pure.

#include <vector>

#include "coordinator/block_manager/cache_counts.h"
#include "coordinator/engine/engine_stats.h"
#include "coordinator/metrics/preemption_series.h"

namespace somnus {

inline std::vector<CounterSeries> PrefixCacheSeries(const EngineStats& stats) {
  std::vector<CounterSeries> series;
  series.push_back({"vllm:prefix_cache_queries_total",
                    "Prompt tokens looked up in the prefix cache.",
                    {},
                    stats.prefix_cache_queries});
  series.push_back({"vllm:prefix_cache_hits_total",
                    "Prompt tokens found in the prefix cache.",
                    {},
                    stats.prefix_cache_hits});
  for (size_t i = 0; i < kCacheMisses.size(); ++i) {
    series.push_back({"somnus:prefix_cache_misses_total",
                      "Prompt tokens that were not found in the prefix cache, by reason.",
                      {{"reason", kCacheMisses[i]}},
                      stats.prefix_cache_misses.tokens[i]});
  }
  series.push_back({"somnus:prefix_cache_blocks_stored_total",
                    "KV blocks that entered the prefix cache.",
                    {},
                    stats.cached_blocks.stored});
  for (size_t i = 0; i < kCacheLosses.size(); ++i) {
    series.push_back({"somnus:prefix_cache_blocks_lost_total",
                      "KV blocks that left the prefix cache, by cause.",
                      {{"cause", kCacheLosses[i]}},
                      stats.cached_blocks.lost[i]});
  }
  return series;
}

}  // namespace somnus
