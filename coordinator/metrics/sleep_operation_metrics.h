#pragma once
// Operators' calls that put models to sleep or wake them, under vLLM's names, without a model's label.
// Internal to coordinator/metrics. Thread safe.

#include <prometheus/registry.h>

#include <string>

#include "absl/time/time.h"
#include "coordinator/metrics/series.h"

namespace somnus {

class SleepOperationMetrics {
 public:
  // The registry outlives this object.
  explicit SleepOperationMetrics(prometheus::Registry* registry) : series_(registry, {}) {
    for (const char* const operation : {"sleep", "release_kv_cache_memory", "wake"}) InFlight(operation);
  }

  void Begin(const std::string& operation) { InFlight(operation).Increment(); }
  void End(const std::string& operation, absl::Duration duration) {
    InFlight(operation).Decrement();
    series_
        .Histogram("vllm:sleep_mode_operation_duration_seconds", "Duration of calls to sleep or to wake up.",
                   kSleepOperationBuckets, {{"operation", operation}})
        .Observe(absl::ToDoubleSeconds(duration));
  }

 private:
  prometheus::Gauge& InFlight(const std::string& operation) {
    return series_.Gauge("vllm:sleep_mode_operations_in_flight", "Calls to sleep or to wake up under way.",
                         {{"operation", operation}});
  }

  const Series series_;
};

}  // namespace somnus
