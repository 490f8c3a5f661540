#include "tools/simulator/figures.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "tools/simulator/svg_chart.h"

namespace somnus {
namespace {

struct NamedPolicy {
  const char* name;
  ServingPolicy policy;
};
constexpr NamedPolicy kPolicies[] = {{"somnus", ServingPolicy::kSomnus},
                                     {"orca-oracle", ServingPolicy::kOrcaOracle},
                                     {"orca-pow2", ServingPolicy::kOrcaPow2},
                                     {"orca-max", ServingPolicy::kOrcaMax},
                                     {"fastertransformer", ServingPolicy::kFasterTransformer}};

struct NamedTrace {
  const char* name;
  LoadTrace trace;
  double saturating;  // requests per second that no policy can serve with a sequence each
};
constexpr NamedTrace kTraces[] = {{"sharegpt", LoadTrace::kShareGpt, 3}, {"alpaca", LoadTrace::kAlpaca, 45}};

// Mean seconds per output token. The paper's curves leave the flat part between these limits.
constexpr double kLatencyLimits[] = {0.2, 0.5};

class Figures {
 public:
  Figures(const SimulationOptions& base, double seconds, uint64_t seed, std::string directory)
      : base_(base), seconds_(seconds), seed_(seed), directory_(std::move(directory)) {}

  absl::Status WriteAll() {
    RETURN_IF_ERROR(MemoryWaste());
    for (const NamedTrace& trace : kTraces)
      RETURN_IF_ERROR(Latency(trace, 1, 0, absl::StrCat("latency_", trace.name)));
    for (const int32_t count : {2, 4, 6}) {
      RETURN_IF_ERROR(Latency(kTraces[1], count, 0, absl::StrCat("latency_alpaca_n", count)));
      RETURN_IF_ERROR(Latency(kTraces[1], 1, count, absl::StrCat("latency_alpaca_beams", count)));
    }
    for (const NamedTrace& trace : kTraces) RETURN_IF_ERROR(Sharing(trace));
    return BlockSizes();
  }

 private:
  absl::StatusOr<ServingOutcome> Run(const SimulationOptions& options, LoadTrace trace, double rate) const {
    DrawnLoadOptions load;
    load.trace = trace;
    load.rate = rate;
    load.requests = std::max<int64_t>(1, std::llround(rate * seconds_));
    load.seed = seed_;
    return Simulate(options, DrawLoad(load).get());
  }

  SimulationOptions With(ServingPolicy policy, int32_t n, int32_t beams) const {
    SimulationOptions options = base_;
    options.policy = policy;
    options.engine.n = n;
    options.engine.beams = beams;
    return options;
  }

  absl::Status Write(const std::string& name, const std::string& svg) const {
    const std::string path = absl::StrCat(directory_, "/", name, ".svg");
    std::ofstream file(path);
    file << svg << std::flush;
    return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
  }

  absl::Status MemoryWaste() {
    BarChart chart;
    chart.title = "Where the KV cache is (ShareGPT, saturated)";
    chart.parts = {"token states", "reservation", "internal", "external and free"};
    std::printf(
        "| policy | token states | reservation | internal | external and free | live / reserved | "
        "running requests |\n|---|---|---|---|---|---|---|\n");
    for (const NamedPolicy& policy : kPolicies) {
      ASSIGN_OR_RETURN(const ServingOutcome outcome,
                       Run(With(policy.policy, 1, 0), LoadTrace::kShareGpt, kTraces[0].saturating));
      // The unused end of a block is lost inside the sequence's memory; the rest of a buddy is the
      // allocator's loss.
      const bool paged = policy.policy == ServingPolicy::kSomnus;
      const double internal = outcome.surplus + (paged ? outcome.rounding : 0);
      const double external = 1 - outcome.live - outcome.future - internal;
      chart.bars.push_back({policy.name, {outcome.live, outcome.future, internal, external}});
      std::printf("| %s | %.1f %% | %.1f %% | %.1f %% | %.1f %% | %.1f %% | %.2f |\n", policy.name,
                  100 * outcome.live, 100 * outcome.future, 100 * internal, 100 * external,
                  100 * outcome.kv_utilization, outcome.running_requests);
    }
    return Write("memory_waste", ToSvg(chart));
  }

  // Charts the latency of every policy up to its overload, and the sustained rates.
  absl::Status Latency(const NamedTrace& trace, int32_t n, int32_t beams, const std::string& name) {
    LineChart chart;
    chart.title = absl::StrCat(
        "Normalized latency, ", trace.name,
        beams > 0 ? absl::StrCat(", beam width ", beams) : (n > 1 ? absl::StrCat(", ", n, " samples") : ""));
    chart.x_label = "requests/s";
    chart.y_label = "s/token";
    std::printf(
        "\n%s: highest requests/s with a mean of at most %.1f and %.1f s/token\n"
        "| policy | %.1f s | somnus / it | %.1f s | somnus / it |\n|---|---|---|---|---|\n",
        chart.title.c_str(), kLatencyLimits[0], kLatencyLimits[1], kLatencyLimits[0], kLatencyLimits[1]);
    double ours[2] = {0, 0};
    for (const NamedPolicy& policy : kPolicies) {
      const SimulationOptions options = With(policy.policy, n, beams);
      double rates[2];
      for (int i = 0; i < 2; ++i) {
        ASSIGN_OR_RETURN(rates[i], SustainedRate(options, trace.trace, seconds_, seed_, kLatencyLimits[i],
                                                 trace.saturating));
        if (policy.policy == ServingPolicy::kSomnus) ours[i] = rates[i];
      }
      std::printf("| %s | %.2f | %.2f | %.2f | %.2f |\n", policy.name, rates[0], ours[0] / rates[0], rates[1],
                  ours[1] / rates[1]);
      LineChart::Series series = {policy.name, {}};
      for (int point = 1; point <= 6; ++point) {
        const double rate = 1.1 * rates[1] * point / 6;
        ASSIGN_OR_RETURN(const ServingOutcome outcome, Run(options, trace.trace, rate));
        series.points.emplace_back(rate, outcome.normalized_latency_s.mean);
      }
      chart.series.push_back(std::move(series));
    }
    return Write(name, ToSvg(chart));
  }

  absl::Status Sharing(const NamedTrace& trace) {
    BarChart chart;
    chart.title = absl::StrCat("Memory saved by sharing, ", trace.name);
    chart.parts = {"saved"};
    std::printf("\n| %s | saved by sharing |\n|---|---|\n", trace.name);
    for (const bool beam : {false, true}) {
      for (const int32_t count : {2, 4, 6}) {
        const SimulationOptions options = With(ServingPolicy::kSomnus, beam ? 1 : count, beam ? count : 0);
        ASSIGN_OR_RETURN(const ServingOutcome outcome, Run(options, trace.trace, trace.saturating / count));
        const std::string name = absl::StrCat(beam ? "beams " : "n = ", count);
        chart.bars.push_back({name, {outcome.sharing_saved}});
        std::printf("| %s | %.1f %% |\n", name.c_str(), 100 * outcome.sharing_saved);
      }
    }
    return Write(absl::StrCat("sharing_", trace.name), ToSvg(chart));
  }

  absl::Status BlockSizes() {
    LineChart chart;
    chart.title = "Normalized latency by block size";
    chart.x_label = "log2 of the block size";
    chart.y_label = "s/token";
    std::printf(
        "\n| block size | sharegpt: s/token | live / reserved | alpaca: s/token | live / reserved |\n"
        "|---|---|---|---|---|\n");
    double rates[2];
    for (int i = 0; i < 2; ++i) {
      ASSIGN_OR_RETURN(const double most,
                       SustainedRate(With(ServingPolicy::kSomnus, 1, 0), kTraces[i].trace, seconds_, seed_,
                                     kLatencyLimits[0], kTraces[i].saturating));
      rates[i] = 0.95 * most;
      chart.series.push_back({absl::StrFormat("%s, %.2f/s", kTraces[i].name, rates[i]), {}});
    }
    for (int log = 0; log <= 8; ++log) {
      std::printf("| %d |", 1 << log);
      for (int i = 0; i < 2; ++i) {
        SimulationOptions options = With(ServingPolicy::kSomnus, 1, 0);
        options.engine.block_size = 1 << log;
        ASSIGN_OR_RETURN(const ServingOutcome outcome, Run(options, kTraces[i].trace, rates[i]));
        chart.series[i].points.emplace_back(log, outcome.normalized_latency_s.mean);
        std::printf(" %.3f | %.1f %% |", outcome.normalized_latency_s.mean, 100 * outcome.kv_utilization);
      }
      std::printf("\n");
    }
    return Write("block_size", ToSvg(chart));
  }

  const SimulationOptions base_;
  const double seconds_;
  const uint64_t seed_;
  const std::string directory_;
};

}  // namespace

absl::Status WriteFigures(const SimulationOptions& base, double seconds, uint64_t seed,
                          const std::string& directory) {
  return Figures(base, seconds, seed, directory).WriteAll();
}

absl::StatusOr<double> SustainedRate(const SimulationOptions& options, LoadTrace trace, double seconds,
                                     uint64_t seed, double limit_s, double most) {
  double low = 0, high = most;
  while (high - low > 0.02 * high) {
    DrawnLoadOptions load;
    load.trace = trace;
    load.rate = (low + high) / 2;
    load.requests = std::max<int64_t>(1, std::llround(load.rate * seconds));
    load.seed = seed;
    ASSIGN_OR_RETURN(const ServingOutcome outcome, Simulate(options, DrawLoad(load).get()));
    (outcome.normalized_latency_s.mean <= limit_s ? low : high) = load.rate;
  }
  return low;
}

}  // namespace somnus
