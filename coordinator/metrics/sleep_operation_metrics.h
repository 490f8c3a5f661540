#pragma once
// Operators' calls that put models to sleep or wake them, under vLLM's names, without a model's label. vLLM's
// later names have `rl_` in them; dashboards ask for either. Internal to coordinator/metrics. Thread safe.

#include <prometheus/registry.h>

#include <string>

#include "absl/time/time.h"
#include "coordinator/metrics/series.h"

namespace somnus {

class SleepOperationMetrics {
 public:
  // The registry outlives this object.
  explicit SleepOperationMetrics(prometheus::Registry* registry) : series_(registry, {}) {
    for (const char* const operation : {"sleep", "release_kv_cache_memory", "wake"})
      AddInFlight(operation, 0);
  }

  void Begin(const std::string& operation) { AddInFlight(operation, 1); }
  void End(const std::string& operation, absl::Duration duration, bool succeeded) {
    AddInFlight(operation, -1);
    for (const char* const name :
         {"vllm:sleep_mode_operation_duration_seconds", "vllm:rl_sleep_mode_operation_duration_seconds"}) {
      series_
          .Histogram(name, "Duration of calls to sleep or to wake up.", kSleepOperationBuckets,
                     {{"operation", operation}})
          .Observe(absl::ToDoubleSeconds(duration));
    }
    series_
        .Counter("vllm:rl_sleep_mode_operations_total", "Calls to sleep or to wake up, by their outcome.",
                 {{"operation", operation}, {"status", succeeded ? "success" : "error"}})
        .Increment();
  }

 private:
  void AddInFlight(const std::string& operation, int change) {
    for (const char* const name :
         {"vllm:sleep_mode_operations_in_flight", "vllm:rl_sleep_mode_operations_in_flight"})
      series_.Gauge(name, "Calls to sleep or to wake up under way.", {{"operation", operation}})
          .Increment(change);
  }

  const Series series_;
};

}  // namespace somnus
