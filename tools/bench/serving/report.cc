#include "tools/bench/serving/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "absl/strings/str_format.h"

namespace somnus::bench {
namespace {

double Percentile(const std::vector<double>& sorted, double fraction) {
  const double position = fraction * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (position - static_cast<double>(below));
}

bool Within(double value, double bound) { return bound <= 0 || value <= bound; }

nlohmann::json ToJson(const Distribution& d) {
  return {{"count", d.count}, {"mean", d.mean}, {"median", d.median},
          {"p90", d.p90},     {"p99", d.p99},   {"max", d.max}};
}

void AppendRow(std::string* text, const char* name, const Distribution& d) {
  absl::StrAppendFormat(text, "%-6s %10.2f %10.2f %10.2f %10.2f %10.2f\n", name, d.mean, d.median, d.p90,
                        d.p99, d.max);
}

}  // namespace

Distribution Summarize(std::vector<double> values) {
  Distribution d;
  if (values.empty()) return d;
  std::sort(values.begin(), values.end());
  d.count = static_cast<int64_t>(values.size());
  d.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  d.median = Percentile(values, 0.5);
  d.p90 = Percentile(values, 0.9);
  d.p99 = Percentile(values, 0.99);
  d.max = values.back();
  return d;
}

Report MakeReport(const std::vector<RequestRecord>& records, const Goodput& goodput) {
  Report report;
  std::vector<double> ttft, tpot, itl, e2e;
  double first_start = HUGE_VAL, last_end = 0;
  int64_t good = 0;
  for (const RequestRecord& r : records) {
    first_start = std::min(first_start, r.start_s);
    last_end = std::max(last_end, r.end_s);
    if (!r.error.empty()) {
      ++report.errors[r.error];
      continue;
    }
    ++report.completed;
    report.prompt_tokens += r.prompt_tokens;
    report.output_tokens += r.output_tokens;
    ttft.push_back((r.first_token_s - r.start_s) * 1e3);
    e2e.push_back((r.end_s - r.start_s) * 1e3);
    double per_token = 0;
    if (r.output_tokens > 1) {
      per_token = (r.end_s - r.first_token_s) * 1e3 / (r.output_tokens - 1);
      tpot.push_back(per_token);
    }
    for (const float gap : r.gaps_s) itl.push_back(gap * 1e3);
    good += Within(ttft.back(), goodput.ttft_ms) && Within(per_token, goodput.tpot_ms) &&
            Within(e2e.back(), goodput.e2e_ms);
  }
  report.duration_s = records.empty() ? 0 : last_end - first_start;
  if (report.duration_s > 0) {
    report.requests_per_s = static_cast<double>(report.completed) / report.duration_s;
    report.output_tokens_per_s = static_cast<double>(report.output_tokens) / report.duration_s;
    report.total_tokens_per_s =
        static_cast<double>(report.prompt_tokens + report.output_tokens) / report.duration_s;
    report.good_requests_per_s = static_cast<double>(good) / report.duration_s;
  }
  if (!records.empty())
    report.good_fraction = static_cast<double>(good) / static_cast<double>(records.size());
  report.ttft = Summarize(std::move(ttft));
  report.tpot = Summarize(std::move(tpot));
  report.itl = Summarize(std::move(itl));
  report.e2e = Summarize(std::move(e2e));
  return report;
}

std::string ToTable(const Report& report, const Goodput& goodput) {
  std::string text = absl::StrFormat(
      "requests          %d completed in %.2f s (%.3f/s)\n"
      "tokens            %d prompt, %d output\n"
      "throughput        %.1f output tokens/s, %.1f total tokens/s\n",
      report.completed, report.duration_s, report.requests_per_s, report.prompt_tokens, report.output_tokens,
      report.output_tokens_per_s, report.total_tokens_per_s);
  if (goodput.any()) {
    absl::StrAppendFormat(&text, "goodput           %.3f requests/s (%.1f %% of all)\n",
                          report.good_requests_per_s, report.good_fraction * 100);
  }
  for (const auto& [kind, count] : report.errors)
    absl::StrAppendFormat(&text, "errors            %d x %s\n", count, kind);
  absl::StrAppendFormat(&text, "\n%-6s %10s %10s %10s %10s %10s\n", "ms", "mean", "median", "p90", "p99",
                        "max");
  AppendRow(&text, "TTFT", report.ttft);
  AppendRow(&text, "TPOT", report.tpot);
  AppendRow(&text, "ITL", report.itl);
  AppendRow(&text, "E2E", report.e2e);
  return text;
}

nlohmann::json ToJson(const Report& r) {
  return {{"completed", r.completed},
          {"errors", r.errors},
          {"duration_s", r.duration_s},
          {"prompt_tokens", r.prompt_tokens},
          {"output_tokens", r.output_tokens},
          {"requests_per_s", r.requests_per_s},
          {"output_tokens_per_s", r.output_tokens_per_s},
          {"total_tokens_per_s", r.total_tokens_per_s},
          {"good_requests_per_s", r.good_requests_per_s},
          {"good_fraction", r.good_fraction},
          {"ttft_ms", ToJson(r.ttft)},
          {"tpot_ms", ToJson(r.tpot)},
          {"itl_ms", ToJson(r.itl)},
          {"e2e_ms", ToJson(r.e2e)}};
}

}  // namespace somnus::bench
