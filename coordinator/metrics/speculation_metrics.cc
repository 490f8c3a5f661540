#include "coordinator/metrics/speculation_metrics.h"

#include "absl/strings/str_cat.h"

namespace somnus {

std::vector<CounterValue> SpeculationCounters(const SpeculationCounts& counts) {
  std::vector<CounterValue> counters = {
      {"vllm:spec_decode_num_drafts_total", "Drafts that steps have checked.", counts.num_drafts, {}},
      {"vllm:spec_decode_num_draft_tokens_total", "Tokens of drafts.", counts.num_draft_tokens, {}},
      {"vllm:spec_decode_num_accepted_tokens_total",
       "Tokens of drafts that were right.",
       counts.num_accepted_tokens,
       {}}};
  for (size_t i = 0; i < counts.num_accepted_tokens_per_pos.size(); ++i) {
    counters.push_back({"vllm:spec_decode_num_accepted_tokens_per_pos_total",
                        "Tokens of drafts that were right, by their place in the draft.",
                        counts.num_accepted_tokens_per_pos[i],
                        {{"position", absl::StrCat(i)}}});
  }
  return counters;
}

}  // namespace somnus
