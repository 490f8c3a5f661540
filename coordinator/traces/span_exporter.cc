#include "coordinator/traces/span_exporter.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"

namespace somnus {
namespace {

constexpr absl::Duration kFirstPause = absl::Seconds(1);

}  // namespace

SpanExporter::SpanExporter(TraceExportOptions options, std::unique_ptr<SpanSender> sender)
    : options_(std::move(options)), sender_(std::move(sender)), thread_([this] { Run(); }) {}

void SpanExporter::Add(std::vector<Span> spans) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto count = static_cast<int64_t>(spans.size());
  if (stopping_ || static_cast<int64_t>(queue_.size()) + num_in_batch_ + count > options_.max_queued_spans) {
    counts_.dropped_full += count;
    return;
  }
  queue_.insert(queue_.end(), std::make_move_iterator(spans.begin()), std::make_move_iterator(spans.end()));
  if (static_cast<int32_t>(queue_.size()) >= options_.max_batch_spans) changed_.notify_all();
}

void SpanExporter::Shutdown(absl::Duration grace) {
  {
    std::unique_lock<std::mutex> lock(mu_);
    if (!thread_.joinable()) return;
    stopping_ = true;
    end_ = MonotonicNow() + grace;
    changed_.notify_all();
    changed_.wait_for(lock, absl::ToChronoNanoseconds(grace), [this] { return ended_; });
    end_ = -absl::InfiniteDuration();
    changed_.notify_all();
  }
  sender_->Cancel();
  thread_.join();
}

SpanExporter::Counts SpanExporter::counts() const {
  std::lock_guard<std::mutex> lock(mu_);
  return counts_;
}

absl::Duration SpanExporter::TimeLeft() const {
  std::lock_guard<std::mutex> lock(mu_);
  return std::max(absl::ZeroDuration(), std::min(options_.timeout, end_ - MonotonicNow()));
}

std::vector<Span> SpanExporter::TakeBatch() {
  std::unique_lock<std::mutex> lock(mu_);
  num_in_batch_ = 0;
  const auto is_full = [this] {
    return stopping_ || static_cast<int32_t>(queue_.size()) >= options_.max_batch_spans;
  };
  do {
    changed_.wait_for(lock, absl::ToChronoNanoseconds(options_.interval), is_full);
  } while (queue_.empty() && !stopping_);
  const auto count = std::min<size_t>(queue_.size(), static_cast<size_t>(options_.max_batch_spans));
  const auto end = queue_.begin() + static_cast<std::ptrdiff_t>(count);
  std::vector<Span> batch(std::make_move_iterator(queue_.begin()), std::make_move_iterator(end));
  queue_.erase(queue_.begin(), end);
  num_in_batch_ = static_cast<int64_t>(count);
  return batch;
}

void SpanExporter::Deliver(const std::vector<Span>& batch) {
  const std::string body = OtlpJson(options_.service_name, batch);
  const auto count = static_cast<int64_t>(batch.size());
  for (absl::Duration pause = std::min(kFirstPause, options_.longest_pause);;
       pause = std::min(2 * pause, options_.longest_pause)) {
    const absl::Duration left = TimeLeft();
    const absl::Status status =
        left > absl::ZeroDuration() ? sender_->Send(body, left) : absl::UnavailableError("the server ends");
    NoteReach(status);
    std::unique_lock<std::mutex> lock(mu_);
    if (status.ok()) return (void)(counts_.exported += count);
    ++counts_.failed_sends;
    if (!absl::IsUnavailable(status)) return (void)(counts_.dropped_refused += count);
    // At the end there is no time for another attempt.
    if (stopping_) return (void)(counts_.dropped_end += count);
    changed_.wait_for(lock, absl::ToChronoNanoseconds(pause), [this] { return stopping_; });
  }
}

void SpanExporter::NoteReach(const absl::Status& status) {
  if (status.ok() == reached_) return;
  reached_ = status.ok();
  if (reached_) return LogInfo("traces: {} takes spans again", options_.endpoint);
  LogWarning("traces: {} takes no spans: {}; at most {} wait, and further ones are dropped",
             options_.endpoint, std::string(status.message()), options_.max_queued_spans);
}

void SpanExporter::Run() {
  for (std::vector<Span> batch = TakeBatch(); !batch.empty(); batch = TakeBatch()) Deliver(batch);
  std::lock_guard<std::mutex> lock(mu_);
  ended_ = true;
  changed_.notify_all();
}

}  // namespace somnus
