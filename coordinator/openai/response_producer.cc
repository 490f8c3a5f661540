#include "coordinator/openai/response_producer.h"

#include <atomic>
#include <exception>
#include <utility>

#include "absl/time/clock.h"
#include "coordinator/openai/prefix_request.h"

namespace somnus {

// Lets the engine's thread post a task. The engine shares this object, and may use it after the producer's
// end.
struct ResponseProducer::Schedule {
  std::weak_ptr<ResponseProducer> producer;
  PostTask post;
  // Wake-ups since a task began last. A task is posted, or runs, while this is above 0.
  std::atomic<int64_t> wakeups{0};
};

ResponseProducer::ResponseProducer(std::shared_ptr<const ServedModel> model, GenerateParams params,
                                   std::shared_ptr<Metrics> metrics, PostTask post, const ApiLimits& limits,
                                   std::shared_ptr<ResponseBudget> budget)
    : model_(std::move(model)),
      params_(std::move(params)),
      post_(std::move(post)),
      max_backlog_bytes_(limits.max_stream_backlog_bytes),
      request_(model_, &params_, std::move(metrics), limits.max_queued_output_bytes),
      writer_(MakeResponseWriter(params_, *model_)),
      budget_(std::move(budget)),
      held_(budget_.get()),
      summary_(request_.NewSummary()) {}

absl::Status ResponseProducer::Submit(std::function<void()> on_ready) {
  on_ready_ = std::move(on_ready);
  {
    absl::MutexLock lock(&mutex_);
    summary_.arrival = absl::Now();  // until the first output
  }
  const auto schedule = std::make_shared<Schedule>();
  schedule->producer = weak_from_this();
  schedule->post = post_;
  return request_.Submit([schedule] {
    if (schedule->wakeups.fetch_add(1) == 0) Post(schedule);
  });
}

// Only the task locks the weak pointer, never the engine's thread: the last reference's owner runs the
// destructor, which may abort the request, and the engine's thread must not do that.
void ResponseProducer::Post(const std::shared_ptr<Schedule>& schedule) {
  schedule->post([schedule] {
    const int64_t seen = schedule->wakeups.load();
    if (const std::shared_ptr<ResponseProducer> producer = schedule->producer.lock()) producer->Produce();
    // The task goes to the end of the queue, so that one busy stream does not occupy a thread.
    if (schedule->wakeups.fetch_sub(seen) != seen) Post(schedule);
  });
}

UsageCounts ResponseProducer::Usage() const {
  UsageCounts usage{request_.prompt_tokens(), request_.completion_tokens(), request_.cached_tokens()};
  if (params_.answer != nullptr && params_.answer->format.reasoning != nullptr)
    usage.reasoning_tokens = request_.reasoning_tokens();
  return usage;
}

// An error before the first byte becomes an HTTP status; a later error becomes the stream's last event.
void ResponseProducer::Fail(const ApiError& error, std::string* bytes) {
  request_.Abort();
  if (params_.prefix != nullptr) params_.prefix->TakeBack();  // before the client reads of the error
  ended_ = true;
  if (started_ || !bytes->empty()) {
    *bytes += writer_->Fail(error);
    return;
  }
  std::string event = params_.stream ? writer_->Fail(error) : "";
  absl::MutexLock lock(&mutex_);
  output_.error = error;
  output_.error_event = std::move(event);
}

void ResponseProducer::ProduceOutputs(std::string* bytes) {
  for (ChoiceUpdate& update : request_.Take()) {
    if (update.delta.finish_reason == FinishReason::kError)
      return Fail(FromStatus(update.delta.error), bytes);
    if (params_.prefix != nullptr && update.delta.finish_reason == FinishReason::kAbort)
      return Fail(FromStatus(PrefixAborted()), bytes);
    if (update.delta.finish_reason == FinishReason::kAbort) {
      if (const std::optional<ApiError> error = writer_->ErrorOfAbort()) return Fail(*error, bytes);
    }
    const bool has_begun =
        !update.delta.token_ids.empty() || update.delta.finish_reason != FinishReason::kNone;
    if (has_begun && weights_version_ == 0) weights_version_ = update.delta.weights_version;
    if (tells_weights_version_) writer_->TellWeightsVersion(weights_version_);
    *bytes += writer_->OnUpdate(std::move(update), Usage());
  }
  if (request_.overflowed()) return Fail({503, "The server is too busy to write the response.", ""}, bytes);
  if (const std::optional<ApiError> error = held_.Hold(writer_->held_bytes() + request_.held_bytes()))
    return Fail(*error, bytes);
  if (!request_.done()) return;
  *bytes += writer_->Finish(Usage());
  ended_ = true;
}

void ResponseProducer::Produce() {
  if (ended_) return;
  std::string bytes;
  try {
    bool too_slow;
    {
      absl::MutexLock lock(&mutex_);
      too_slow = static_cast<int64_t>(output_.bytes.size()) > max_backlog_bytes_;
    }
    if (too_slow) {
      Fail({500, "The client reads too slowly.", ""}, &bytes);
    } else {
      ProduceOutputs(&bytes);
    }
  } catch (const std::exception&) {
    Fail({500, "internal error", ""}, &bytes);
  }
  started_ = started_ || !bytes.empty();
  if (bytes.empty() && !ended_) return;
  {
    absl::MutexLock lock(&mutex_);
    output_.bytes += bytes;
    output_.done = ended_;
    output_.weights_version = weights_version_;
    request_.UpdateSummary(&summary_);
    if (std::exchange(told_, true)) return;
  }
  on_ready_();
}

ResponseProducer::Output ResponseProducer::Take() {
  absl::MutexLock lock(&mutex_);
  told_ = false;
  return std::exchange(output_, Output());
}

void ResponseProducer::Abort() { request_.Abort(); }

RequestSummary ResponseProducer::Summary() const {
  absl::MutexLock lock(&mutex_);
  return summary_;
}

}  // namespace somnus
