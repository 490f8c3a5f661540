#pragma once
// The counters of preemptions, swaps, copies and refused admissions, for /metrics. Values; pure.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coordinator/engine/engine_stats.h"

namespace somnus {

struct CounterSeries {
  const char* name;
  const char* help;
  std::map<std::string, std::string> labels;
  int64_t value = 0;  // since the start
};

inline std::vector<CounterSeries> PreemptionSeries(const EngineStats& stats) {
  std::vector<CounterSeries> series;
  const char* const preemptions = "Preemptions of running sequences, by cause and mode.";
  for (size_t i = 0; i < kPreemptionCauses.size(); ++i) {
    for (const char* const mode : {"swap", "recompute"}) {
      const auto& by_cause = *mode == 's' ? stats.preemptions.by_swap : stats.preemptions.by_recompute;
      series.push_back({"somnus:preemptions_total",
                        preemptions,
                        {{"cause", kPreemptionCauses[i]}, {"mode", mode}},
                        by_cause[i]});
    }
  }
  const char* const swapped = "KV blocks that steps copied to host memory, and back.";
  series.push_back({"somnus:swapped_blocks_total", swapped, {{"direction", "out"}}, stats.swaps.out_blocks});
  series.push_back({"somnus:swapped_blocks_total", swapped, {{"direction", "in"}}, stats.swaps.in_blocks});
  series.push_back({"somnus:swapped_tokens_total",
                    "Tokens of preempted sequences that were not computed again.",
                    {},
                    stats.swaps.in_tokens});
  series.push_back({"somnus:prefix_cache_host_hits_total",
                    "Prompt tokens of prefix cache hits that came from host memory.",
                    {},
                    stats.swaps.host_hit_tokens});
  const char* const cached = "Blocks of the prefix cache that were stored in host memory, and that gave way.";
  series.push_back(
      {"somnus:prefix_cache_host_blocks_total", cached, {{"event", "stored"}}, stats.swaps.stored_blocks});
  series.push_back(
      {"somnus:prefix_cache_host_blocks_total", cached, {{"event", "evicted"}}, stats.swaps.evicted_blocks});
  for (size_t i = 1; i < kSwapObstacles.size(); ++i) {
    series.push_back({"somnus:swaps_declined_total",
                      "Preemptions whose sequences are computed again though swapping is on, by reason.",
                      {{"reason", kSwapObstacles[i]}},
                      stats.swaps.obstacles[i]});
  }
  series.push_back({"somnus:copied_blocks_total",
                    "KV blocks that forks have copied to have their own.",
                    {},
                    stats.copied_blocks});
  series.push_back({"somnus:watermark_refusals_total",
                    "Admissions that free blocks below the watermark alone would have allowed.",
                    {},
                    stats.watermark_refusals});
  return series;
}

}  // namespace somnus
