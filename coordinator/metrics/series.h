#pragma once
// The metrics of a registry that have the same labels, such as those of one model. Internal to
// coordinator/metrics.
//
// A metric is made when it is first asked for: prometheus-cpp returns the same object for the same name and
// labels each time. Borrows the registry, which outlives the object. Thread safe.

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "coordinator/metrics/metric_buckets.h"

namespace somnus {

using Labels = std::map<std::string, std::string>;

class Series {
 public:
  Series(prometheus::Registry* registry, Labels labels) : registry_(*registry), labels_(std::move(labels)) {}

  // `more`: labels besides the common ones.
  prometheus::Gauge& Gauge(const std::string& name, const std::string& help, const Labels& more = {}) const {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(With(more));
  }
  void Remove(const std::string& name, const std::string& help, prometheus::Gauge* gauge) const {
    prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Remove(gauge);
  }
  prometheus::Counter& Counter(const std::string& name, const std::string& help,
                               const Labels& more = {}) const {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(With(more));
  }
  prometheus::Histogram& Histogram(const std::string& name, const std::string& help, const Buckets& buckets,
                                   const Labels& more = {}) const {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add(With(more), buckets);
  }
  void Count(const std::string& name, const std::string& help, const Labels& more = {}) const {
    Counter(name, help, more).Increment();
  }
  // Brings a counter up to a count that somebody else keeps. One thread at a time may do so for a counter.
  void Advance(const std::string& name, const std::string& help, int64_t value,
               const Labels& more = {}) const {
    prometheus::Counter& counter = Counter(name, help, more);
    if (const double missing = static_cast<double>(value) - counter.Value(); missing > 0)
      counter.Increment(missing);
  }

 private:
  Labels With(const Labels& more) const {
    Labels labels = labels_;
    labels.insert(more.begin(), more.end());
    return labels;
  }

  prometheus::Registry& registry_;
  const Labels labels_;
};

}  // namespace somnus
