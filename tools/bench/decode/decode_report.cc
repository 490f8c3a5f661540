#include "tools/bench/decode/decode_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/bench/median.h"

namespace somnus {
namespace {

constexpr char kRow[] = "%-8s %5s %6s  %-26s %-26s %-16s %-16s %-26s %-18s %s\n";

// "5.61 (5.25..8.66)".
std::string Range(const std::vector<double>& values, int digits) {
  if (values.empty()) return "-";
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return absl::StrFormat("%.*f (%.*f..%.*f)", digits, Median(values), digits, *low, digits, *high);
}

const char* KindOf(bool is_prefill) { return is_prefill ? "prefill" : "decode"; }

}  // namespace

std::string SpeedText(const Workload& load, bool is_prefill, const Speed& speed) {
  std::string text = absl::StrFormat("  %-8s batch %2d  prompt %5d  %8.1f tok/s  %8.2f ms  %3.0f %% of peak",
                                     KindOf(is_prefill), load.batch, load.prompt_tokens, speed.ours,
                                     speed.step_ms, speed.of_peak * 100);
  if (!is_prefill) absl::StrAppendFormat(&text, "  %3.0f %% of read", speed.of_read * 100);
  if (speed.peer > 0)
    absl::StrAppendFormat(&text, "  peer %8.1f  ratio %.2f", speed.peer, speed.ours / speed.peer);
  return text;
}

nlohmann::json Summary(const Workload& load, bool is_prefill, const std::vector<RunSample>& samples) {
  std::vector<double> ours, peers, ratios, reads, peaks, steps, gbps;
  int dropped = 0;
  for (const RunSample& sample : samples) {
    if (sample.dropped) {
      ++dropped;
      continue;
    }
    const Speed& speed = is_prefill ? sample.prefill : sample.decode;
    ours.push_back(speed.ours);
    steps.push_back(speed.step_ms);
    peaks.push_back(speed.of_peak * 100);
    gbps.push_back(sample.read_gbps);
    if (!is_prefill) reads.push_back(speed.of_read * 100);
    if (speed.peer > 0) {
      peers.push_back(speed.peer);
      ratios.push_back(speed.ours / speed.peer);
    }
  }
  return {
      {"kind", KindOf(is_prefill)},      {"batch", load.batch},       {"prompt_tokens", load.prompt_tokens},
      {"new_tokens", load.new_tokens},   {"tokens_per_second", ours}, {"step_ms", steps},
      {"read_bandwidth_percent", reads}, {"peak_percent", peaks},     {"read_gbps", gbps},
      {"peer_tokens_per_second", peers}, {"ratio", ratios},           {"dropped", dropped}};
}

std::string TableHead() {
  return absl::StrFormat(kRow, "", "batch", "prompt", "tok/s", "ms", "% of read", "% of peak", "peer tok/s",
                         "ratio", "dropped");
}

std::string TableRow(const nlohmann::json& summary) {
  const auto range = [&](const char* name, int digits) {
    return Range(summary[name].get<std::vector<double>>(), digits);
  };
  return absl::StrFormat(kRow, summary["kind"].get<std::string>(), absl::StrCat(summary["batch"].get<int>()),
                         absl::StrCat(summary["prompt_tokens"].get<int>()), range("tokens_per_second", 1),
                         range("step_ms", 2), range("read_bandwidth_percent", 0), range("peak_percent", 0),
                         range("peer_tokens_per_second", 1), range("ratio", 2),
                         absl::StrCat(summary["dropped"].get<int>()));
}

}  // namespace somnus
