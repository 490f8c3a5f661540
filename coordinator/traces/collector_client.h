#pragma once
// Posts messages to a collector by HTTP/1.1, each on a connection of its own. See SpanSender for threads.

#include <atomic>

#include "coordinator/traces/collector_url.h"
#include "coordinator/traces/span_exporter.h"

namespace somnus {

class CollectorClient : public SpanSender {
 public:
  explicit CollectorClient(CollectorUrl url) : url_(std::move(url)) {}

  // Unavailable: no connection, no answer in time, or one of the statuses 429, 502, 503 and 504, with which
  // OTLP asks for another attempt. Unknown: another status, or no answer in HTTP.
  absl::Status Send(const std::string& body, absl::Duration timeout) override;
  void Cancel() override { cancelled_ = true; }

 private:
  class Exchange;  // one message
  const CollectorUrl url_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace somnus
