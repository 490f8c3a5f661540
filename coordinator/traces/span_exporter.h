#pragma once
// Brings spans to a collector, from a thread of its own. A caller that adds spans never waits: spans that
// find the queue full are dropped and counted.
//
// Spans go in batches. A batch that the collector could not take now is sent again after a pause, which
// doubles up to options.longest_pause; a batch that the collector refuses is dropped and counted. The batch
// under way counts in the bound of the queue. Thread safe. Owns its thread, which ends within Shutdown.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/traces/span.h"
#include "coordinator/traces/trace_options.h"

namespace somnus {

// A way to a collector. Send is called by one thread at a time.
class SpanSender {
 public:
  virtual ~SpanSender() = default;
  // Sends an ExportTraceServiceRequest in JSON. Takes no longer than `timeout`. Unavailable: the collector
  // may take the message later; any other error: the collector refuses the message.
  virtual absl::Status Send(const std::string& body, absl::Duration timeout) = 0;
  // Makes a Send under way, and each later one, end at once. From any thread.
  virtual void Cancel() = 0;
};

class SpanExporter {
 public:
  struct Counts {
    int64_t exported = 0;
    int64_t dropped_full = 0;     // the queue was full
    int64_t dropped_refused = 0;  // the collector has refused the batch
    int64_t dropped_end = 0;      // left over at the end
    int64_t failed_sends = 0;     // messages that the collector did not take, now or at all
  };

  SpanExporter(TraceExportOptions options, std::unique_ptr<SpanSender> sender);
  ~SpanExporter() { Shutdown(absl::ZeroDuration()); }
  SpanExporter(const SpanExporter&) = delete;

  // Adds all of the spans, which belong together, or none.
  void Add(std::vector<Span> spans);
  // Sends what waits, for no longer than `grace`, and ends the thread. Later spans are dropped. Idempotent.
  void Shutdown(absl::Duration grace);

  Counts counts() const;

 private:
  void Run();
  // Waits for the next batch. Empty: the thread has to end.
  std::vector<Span> TakeBatch();
  // Sends a batch until it is taken, refused, or given up at the end.
  void Deliver(const std::vector<Span>& batch);
  // The time that a message may take now; zero: none may be sent any more.
  absl::Duration TimeLeft() const;
  void NoteReach(const absl::Status& status);

  const TraceExportOptions options_;
  const std::unique_ptr<SpanSender> sender_;
  // std::mutex: see base/monotonic.h about the timeouts of absl::Mutex.
  mutable std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Span> queue_;
  int64_t num_in_batch_ = 0;
  Counts counts_;
  bool stopping_ = false;
  bool ended_ = false;  // the thread has nothing to do any more
  MonotonicTime end_ = absl::InfiniteDuration();
  bool reached_ = true;  // of the thread alone: the collector took the last message, or none was sent
  std::thread thread_;
};

}  // namespace somnus
