#pragma once
// Makes a generating request's response on output threads: token ids become text, stop strings are searched,
// text becomes JSON or SSE events. The engine's loop only queues outputs; the I/O thread only sends bytes.
//
// Threads. Outputs arrive on the engine's thread, which posts at most one task at a time to the output
// threads: so the response is written in order, and one task takes all outputs that arrived while the task
// waited. Submit and Take are for the consumer (Submit on the request pool, then Take on the I/O thread);
// Abort may come from any thread and does not wait for a task that runs. `on_ready` is called on an output
// thread when there is something to Take after there was nothing.
//
// Bounded: a response is aborted and ends with an error when more than max_stream_backlog_bytes wait to be
// taken, when the response holds more than `budget` has left, or when the output threads are behind by more
// than max_queued_output_bytes. Ownership: tasks that have not run yet do not keep the producer alive; a
// producer that is destroyed before the end aborts the rest of the response.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/http/api_error.h"
#include "coordinator/openai/client_request.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/openai_response.h"
#include "coordinator/openai/response_budget.h"
#include "coordinator/openai/served_model.h"

namespace somnus {

// Queues a task for the output threads. May be called at any time, from any thread; after the output threads
// have ended the task never runs.
using PostTask = std::function<void(std::function<void()>)>;

class ResponseProducer : public std::enable_shared_from_this<ResponseProducer> {
 public:
  // `metrics` may be null.
  ResponseProducer(std::shared_ptr<const ServedModel> model, GenerateParams params,
                   std::shared_ptr<Metrics> metrics, PostTask post, const ApiLimits& limits,
                   std::shared_ptr<ResponseBudget> budget);
  ResponseProducer(const ResponseProducer&) = delete;
  ResponseProducer& operator=(const ResponseProducer&) = delete;

  // Errors are the engine's. To be called once, on an object that a shared_ptr owns.
  absl::Status Submit(std::function<void()> on_ready);

  struct Output {
    std::string bytes;              // not streamed: the whole body, once complete
    bool done = false;              // nothing follows
    std::optional<ApiError> error;  // instead of all bytes: none were returned before
    std::string error_event;      // of a stream: the error as bytes, for a client that has the stream's head
    int64_t weights_version = 0;  // of the weights that computed the first token; 0: not known, or none did
  };
  // Returns the bytes that were made since the last call.
  Output Take();
  // A stream's head is sent before there is anything to Take, so the head cannot tell the version of the
  // weights: the last event of every choice that is made from now on tells the version. Thread safe.
  void TellWeightsVersionInEvents() { tells_weights_version_ = true; }
  // Aborts all sequences in the engine.
  void Abort();
  // The figures of the request until now. Thread safe.
  RequestSummary Summary() const;

  const GenerateParams& params() const { return params_; }

 private:
  struct Schedule;
  static void Post(const std::shared_ptr<Schedule>& schedule);

  // The next functions run on the output threads, one at a time.
  void Produce();
  void ProduceOutputs(std::string* bytes);
  void Fail(const ApiError& error, std::string* bytes);
  UsageCounts Usage() const;

  const std::shared_ptr<const ServedModel> model_;
  const GenerateParams params_;
  const PostTask post_;
  const int64_t max_backlog_bytes_;
  std::function<void()> on_ready_;

  // Used by the output threads alone, but for Submit and Abort.
  ClientRequest request_;
  const std::unique_ptr<ResponseWriter> writer_;
  bool started_ = false;  // some bytes of a stream have been made
  bool ended_ = false;    // the last bytes, or the error, have been made
  const std::shared_ptr<ResponseBudget> budget_;
  int64_t weights_version_ = 0;  // as of Output
  std::atomic<bool> tells_weights_version_{false};
  ResponseBudget::Part held_;  // given back after the response has been sent: the sender keeps the producer

  mutable absl::Mutex mutex_;
  Output output_ ABSL_GUARDED_BY(mutex_);
  RequestSummary summary_ ABSL_GUARDED_BY(mutex_);
  bool told_ ABSL_GUARDED_BY(mutex_) = false;  // on_ready has been called since the last Take
};

}  // namespace somnus
