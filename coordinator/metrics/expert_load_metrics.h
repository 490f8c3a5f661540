#pragma once
// The load of a model's experts: how many tokens the router sent to each, by layer. Internal to
// coordinator/metrics. Thread safe, but for Update, which one thread at a time may call. There are no series
// until a step has been counted.

#include <prometheus/counter.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/engine/engine_observer.h"
#include "coordinator/metrics/series.h"

namespace somnus {

class ExpertLoadMetrics {
 public:
  // Borrows `series`.
  explicit ExpertLoadMetrics(const Series* series) : series_(*series) {}

  // Adds the counts of a step.
  void OnStep(const ExpertLoadEvent& event) {
    const size_t first = static_cast<size_t>(event.first_expert),
                 count = static_cast<size_t>(event.num_experts);
    if (event.first_expert < 0 || event.num_experts < 0 ||
        event.first_expert + event.num_experts > kMaxExperts ||
        event.tokens.size() != event.layers.size() * count)
      return;
    absl::MutexLock lock(&mu_);
    for (size_t i = 0; i < event.layers.size(); ++i) {
      std::vector<uint64_t>& tokens = fresh_[event.layers[i]];
      tokens.resize(std::max(tokens.size(), first + count));
      for (size_t e = 0; e < count; ++e) tokens[first + e] += event.tokens[i * count + e];
    }
  }

  // Brings the series up to the steps that were counted.
  void Update() {
    std::map<int32_t, std::vector<uint64_t>> fresh;
    {
      absl::MutexLock lock(&mu_);
      fresh.swap(fresh_);
    }
    double worst = 0;
    for (const auto& [layer, tokens] : fresh) {
      AddLayer(layer, tokens);
      worst = std::max(worst, Imbalance(tokens));
    }
    if (worst == 0) return;
    series_
        .Gauge("somnus:expert_load_imbalance",
               "Tokens of the busiest expert over the mean of its layer's experts, in the layer where this "
               "is most, between the last two readings that saw steps.")
        .Set(worst);
  }

 private:
  // A bound on what a worker's reply may claim; checkpoints have no more (kMaxRoutedExperts), and metrics
  // know no checkpoints.
  static constexpr int32_t kMaxExperts = 1024;

  // The largest over the mean; 0 where there are no tokens.
  static double Imbalance(const std::vector<uint64_t>& tokens) {
    const uint64_t sum = std::accumulate(tokens.begin(), tokens.end(), uint64_t{0});
    if (sum == 0) return 0;
    return static_cast<double>(*std::max_element(tokens.begin(), tokens.end())) *
           static_cast<double>(tokens.size()) / static_cast<double>(sum);
  }

  void AddLayer(int32_t layer, const std::vector<uint64_t>& tokens) {
    std::vector<prometheus::Counter*>& counters = counters_[layer];
    for (size_t e = counters.size(); e < tokens.size(); ++e) {
      counters.push_back(&series_.Counter("somnus:expert_tokens_total",
                                          "Tokens that the router sent to an expert of a layer.",
                                          {{"layer", absl::StrCat(layer)}, {"expert", absl::StrCat(e)}}));
    }
    for (size_t e = 0; e < tokens.size(); ++e) counters[e]->Increment(static_cast<double>(tokens[e]));
  }

  const Series& series_;
  std::map<int32_t, std::vector<prometheus::Counter*>> counters_;  // by layer, then by expert; Update's
  absl::Mutex mu_;
  // By layer, then by expert: of the steps since the last Update.
  std::map<int32_t, std::vector<uint64_t>> fresh_ ABSL_GUARDED_BY(mu_);
};

}  // namespace somnus
