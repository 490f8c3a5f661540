#include "tools/simulator/serving_report.h"

#include "absl/strings/str_format.h"

namespace somnus {

nlohmann::json ToJson(const ServingOutcome& outcome) {
  return {{"requests", outcome.requests},
          {"refused", outcome.refused},
          {"mean_normalized_latency_s", outcome.normalized_latency_s.mean},
          {"median_normalized_latency_s", outcome.normalized_latency_s.p50},
          {"p99_normalized_latency_s", outcome.normalized_latency_s.p99},
          {"mean_ttft_s", outcome.ttft_s.mean},
          {"median_ttft_s", outcome.ttft_s.p50},
          {"p99_ttft_s", outcome.ttft_s.p99},
          {"kv_utilization", outcome.kv_utilization},
          {"kv_live", outcome.live},
          {"kv_future", outcome.future},
          {"kv_surplus", outcome.surplus},
          {"kv_rounding", outcome.rounding},
          {"mean_running_requests", outcome.running_requests},
          {"num_preemptions", outcome.num_preemptions},
          {"num_swap_preemptions", outcome.num_swap_preemptions},
          {"sharing_saved", outcome.sharing_saved},
          {"output_tokens_per_s", outcome.output_tokens_per_s},
          {"num_steps", outcome.num_steps},
          {"simulated_s", outcome.simulated_s}};
}

std::string ToText(const ServingOutcome& outcome) {
  return absl::StrFormat(
      "%d requests in %.1f s (%d refused), %.1f output tokens/s, %d steps, %d preemptions, %d of them by "
      "swap\n"
      "normalized latency: mean %.4f, median %.4f, p99 %.4f s/token\n"
      "time to the first token: mean %.3f, median %.3f, p99 %.3f s\n"
      "KV cache: %.1f %% of the reserved slots are live; of all slots %.1f %% live, %.1f %% for later "
      "tokens, "
      "%.1f %% for tokens that never come, %.1f %% lost by rounding\n"
      "%.2f requests run at once; sharing saves %.1f %%",
      outcome.requests, outcome.simulated_s, outcome.refused, outcome.output_tokens_per_s, outcome.num_steps,
      outcome.num_preemptions, outcome.num_swap_preemptions, outcome.normalized_latency_s.mean,
      outcome.normalized_latency_s.p50, outcome.normalized_latency_s.p99, outcome.ttft_s.mean,
      outcome.ttft_s.p50, outcome.ttft_s.p99, 100 * outcome.kv_utilization, 100 * outcome.live,
      100 * outcome.future, 100 * outcome.surplus, 100 * outcome.rounding, outcome.running_requests,
      100 * outcome.sharing_saved);
}

}  // namespace somnus
