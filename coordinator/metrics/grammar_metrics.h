#pragma once
// The metrics of structured outputs of one model. Internal to coordinator/metrics. Thread safe, but for
// Update, which one thread at a time may call.

#include "absl/time/time.h"
#include "coordinator/metrics/grammar_numbers.h"
#include "coordinator/metrics/series.h"

namespace somnus {

class GrammarMetrics {
 public:
  // Borrows `series`.
  explicit GrammarMetrics(const Series* series)
      : series_(*series),
        compile_(series->Histogram("somnus:grammar_compile_seconds",
                                   "Duration of compiles of grammars, refused ones included.", kFineBuckets)),
        mask_(series->Histogram("somnus:grammar_mask_seconds",
                                "Time that the masks of a step's constrained sequences took, together.",
                                kMaskBuckets)) {}

  void OnCompiled(absl::Duration duration) { compile_.Observe(absl::ToDoubleSeconds(duration)); }
  void OnMasks(absl::Duration duration) { mask_.Observe(absl::ToDoubleSeconds(duration)); }

  void Update(const GrammarNumbers& numbers) {
    series_.Gauge("somnus:grammars_cached", "Grammars and refusals that are kept.")
        .Set(static_cast<double>(numbers.entries));
    series_.Gauge("somnus:grammar_cache_bytes", "Memory of the grammars that are kept.")
        .Set(static_cast<double>(numbers.bytes));
    series_.Gauge("somnus:grammar_waits", "Requests that wait for the compile of their grammar.")
        .Set(static_cast<double>(numbers.waiting));
    const auto lookups = [this](const char* result, int64_t count) {
      series_.Advance("somnus:grammar_lookups_total", "Grammars that requests asked for, by result.", count,
                      {{"result", result}});
    };
    lookups("hit", numbers.hits);
    lookups("miss", numbers.misses);
    series_.Advance("somnus:grammars_refused_total", "Compiles of grammars that ended in an error.",
                    numbers.refused);
    series_.Advance("somnus:grammar_waits_expired_total", "Requests that waited too long for their grammar.",
                    numbers.expired);
    series_.Advance("somnus:grammars_evicted_total", "Grammars that gave way to others.", numbers.evicted);
  }

 private:
  const Series& series_;
  prometheus::Histogram& compile_;
  prometheus::Histogram& mask_;
};

}  // namespace somnus
