#pragma once
// The metrics of adapters (LoRA): vLLM's, which adapters have requests, and how many are loaded. Internal to
// coordinator/metrics. One thread at a time.

#include <prometheus/gauge.h>

#include <string>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/metrics/adapter_numbers.h"
#include "coordinator/metrics/series.h"

namespace somnus {

class AdapterMetrics {
 public:
  // Borrows `series`.
  explicit AdapterMetrics(const Series* series) : series_(*series) {}

  // As in vLLM the labels have the names, and the value is the time. One series stays: that of the last call.
  void Update(const AdapterNumbers& numbers) {
    Labels labels = {{"max_lora", std::to_string(numbers.max_loras)},
                     {"running_lora_adapters", absl::StrJoin(numbers.running, ",")},
                     {"waiting_lora_adapters", absl::StrJoin(numbers.waiting, ",")}};
    if (labels != labels_ && gauge_ != nullptr) series_.Remove(kName, kHelp, gauge_);
    gauge_ = &series_.Gauge(kName, kHelp, labels);
    labels_ = std::move(labels);
    gauge_->Set(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
    SetCount("held", numbers.num_held);
    SetCount("forgotten", numbers.num_forgotten);
    series_.Advance("somnus:adapter_reads_total", "Reads of adapters that the workers had forgotten.",
                    numbers.num_reads_again);
  }

 private:
  void SetCount(const char* state, int32_t count) const {
    series_
        .Gauge("somnus:adapters", "Adapters, by whether the workers hold them or read them again when asked.",
               {{"state", state}})
        .Set(count);
  }

  static constexpr char kName[] = "vllm:lora_requests_info";
  static constexpr char kHelp[] = "Adapters that have requests, by their names.";

  const Series& series_;
  Labels labels_;
  prometheus::Gauge* gauge_ = nullptr;
};

}  // namespace somnus
