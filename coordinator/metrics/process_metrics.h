#pragma once
// Metrics of the process, without a model's label: the models of one registry share the metrics.
// Thread safe.

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/heartbeat.h"
#include "base/log_writer.h"

namespace somnus {

class ProcessMetrics {
 public:
  // The registry outlives this object.
  explicit ProcessMetrics(prometheus::Registry* registry)
      : registry_(*registry),
        dropped_(prometheus::BuildCounter()
                     .Name("somnus:log_lines_dropped_total")
                     .Help("Lines of the coordinator's log that were dropped because nobody read it.")
                     .Register(*registry)
                     .Add({})),
        silence_(prometheus::BuildGauge()
                     .Name("somnus:longest_loop_silence_seconds")
                     .Help("The longest time for which a loop that serves has given no sign of life.")
                     .Register(*registry)
                     .Add({})) {}

  // Returns all metrics of the registry as Prometheus' text, with present values for the process.
  std::string Serialize() {
    Update();
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

 private:
  void Update() {
    silence_.Set(absl::ToDoubleSeconds(Heartbeats::OfProcess().LongestSilence()));
    const LogWriter* const writer = LogWriter::OfProcess();
    if (writer == nullptr) return;
    absl::MutexLock lock(&mu_);
    const double missing = static_cast<double>(writer->num_dropped()) - dropped_.Value();
    if (missing > 0) dropped_.Increment(missing);
  }

  const prometheus::Registry& registry_;
  absl::Mutex mu_;
  prometheus::Counter& dropped_;
  prometheus::Gauge& silence_;
};

}  // namespace somnus
