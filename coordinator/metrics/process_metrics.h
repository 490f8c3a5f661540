#pragma once
// Metrics of the process, without a model's label: the models of one registry share the metrics.
// Thread safe.

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/heartbeat.h"
#include "base/log_writer.h"
#include "coordinator/metrics/bucket_bounds.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/metrics/process_numbers.h"
#include "coordinator/metrics/series.h"

namespace somnus {

class ProcessMetrics {
 public:
  // The registry outlives this object.
  explicit ProcessMetrics(prometheus::Registry* registry)
      : registry_(*registry),
        series_(registry, {}),
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

  void AddSource(CounterSource source) {
    absl::MutexLock lock(&mu_);
    sources_.push_back(std::move(source));
  }

  // Returns all metrics of the registry as Prometheus' text, with present values for the process.
  std::string Serialize() {
    Update();
    return WithBoundsAsVllm(prometheus::TextSerializer().Serialize(registry_.Collect()));
  }

 private:
  void Update() {
    silence_.Set(absl::ToDoubleSeconds(Heartbeats::OfProcess().LongestSilence()));
    UpdateNumbers();
    absl::MutexLock lock(&mu_);
    for (const CounterSource& source : sources_)
      series_.Advance(source.name, source.help, source.count(), source.labels);
    const LogWriter* const writer = LogWriter::OfProcess();
    if (writer == nullptr) return;
    const double missing = static_cast<double>(writer->num_dropped()) - dropped_.Value();
    if (missing > 0) dropped_.Increment(missing);
  }

  // Under the names of Prometheus' client libraries, which Grafana's dashboards of processes use.
  void UpdateNumbers() {
    const absl::StatusOr<ProcessNumbers> numbers = ReadProcessNumbers();
    if (!numbers.ok()) return;
    const auto set = [this](const char* name, const char* help, double value) {
      series_.Gauge(name, help).Set(value);
    };
    set("process_resident_memory_bytes", "Resident memory of the coordinator.",
        static_cast<double>(numbers->resident_bytes));
    set("process_virtual_memory_bytes", "Virtual memory of the coordinator.",
        static_cast<double>(numbers->virtual_bytes));
    set("process_start_time_seconds", "Start of the coordinator, in Unix seconds.", numbers->start_time);
    set("process_open_fds", "Open file descriptors.", static_cast<double>(numbers->open_fds));
    set("process_max_fds", "File descriptors that may be open; 0: no bound.",
        static_cast<double>(numbers->max_fds));
    absl::MutexLock lock(&mu_);
    prometheus::Counter& cpu =
        series_.Counter("process_cpu_seconds_total", "Time of CPUs that the coordinator has used.");
    if (const double missing = numbers->cpu_seconds - cpu.Value(); missing > 0) cpu.Increment(missing);
  }

  const prometheus::Registry& registry_;
  const Series series_;  // of the whole process
  absl::Mutex mu_;
  std::vector<CounterSource> sources_ ABSL_GUARDED_BY(mu_);
  prometheus::Counter& dropped_;
  prometheus::Gauge& silence_;
};

}  // namespace somnus
