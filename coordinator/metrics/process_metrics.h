#pragma once
// Metrics of the process, which have no model's labels: all models' metrics in one registry share them.
// Thread safe.

#include <prometheus/counter.h>
#include <prometheus/registry.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/log_writer.h"

namespace somnus {

class ProcessMetrics {
 public:
  // The registry outlives this object.
  explicit ProcessMetrics(prometheus::Registry* registry)
      : dropped_(prometheus::BuildCounter()
                     .Name("somnus:log_lines_dropped_total")
                     .Help("Lines of the coordinator's log that were dropped because nobody read it.")
                     .Register(*registry)
                     .Add({})) {}

  void Update() {
    const LogWriter* const writer = LogWriter::OfProcess();
    if (writer == nullptr) return;
    absl::MutexLock lock(&mu_);
    const double missing = static_cast<double>(writer->num_dropped()) - dropped_.Value();
    if (missing > 0) dropped_.Increment(missing);
  }

 private:
  absl::Mutex mu_;
  prometheus::Counter& dropped_;
};

}  // namespace somnus
