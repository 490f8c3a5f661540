#include "coordinator/several_models/request_deadlines.h"

#include <algorithm>
#include <list>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace somnus {
namespace {

struct Watched {
  MonotonicTime arrival;
  MonotonicTime first_token;
  int64_t num_tokens = 0;
};

}  // namespace

struct RequestDeadlines::Open {
  absl::Mutex mu;
  std::list<Watched> requests ABSL_GUARDED_BY(mu);
};

class RequestDeadlines::Sink : public OutputSink {
 public:
  Sink(std::shared_ptr<Open> open, MonotonicClock now, std::shared_ptr<OutputSink> next)
      : open_(std::move(open)), now_(std::move(now)), next_(std::move(next)) {
    absl::MutexLock lock(&open_->mu);
    request_ = open_->requests.insert(open_->requests.end(), Watched{.arrival = now_()});
  }
  ~Sink() override {
    absl::MutexLock lock(&open_->mu);
    Forget();
  }

  void OnOutput(RequestOutput output) override {
    Count(output);
    next_->OnOutput(std::move(output));
  }

 private:
  void Count(const RequestOutput& output) {
    absl::MutexLock lock(&open_->mu);
    if (forgotten_) return;
    if (output.finish_reason != FinishReason::kNone) return Forget();
    if (request_->num_tokens == 0) request_->first_token = now_();
    request_->num_tokens += static_cast<int64_t>(output.token_ids.size());
  }

  void Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(open_->mu) {
    if (!forgotten_) open_->requests.erase(request_);
    forgotten_ = true;
  }

  const std::shared_ptr<Open> open_;
  const MonotonicClock now_;
  const std::shared_ptr<OutputSink> next_;
  std::list<Watched>::iterator request_;
  bool forgotten_ ABSL_GUARDED_BY(open_->mu) = false;
};

RequestDeadlines::RequestDeadlines(TokenTargets targets, MonotonicClock now)
    : targets_(targets), now_(std::move(now)), open_(std::make_shared<Open>()) {}

void RequestDeadlines::Watch(std::vector<EngineRequest>* requests) {
  if (targets_.ttft <= absl::ZeroDuration() && targets_.tpot <= absl::ZeroDuration()) return;
  for (EngineRequest& request : *requests)
    request.sink = std::make_shared<Sink>(open_, now_, std::move(request.sink));
}

MonotonicTime RequestDeadlines::Earliest() const {
  MonotonicTime earliest = absl::InfiniteDuration();
  const bool first_in_time = targets_.ttft > absl::ZeroDuration();
  const bool each_in_time = targets_.tpot > absl::ZeroDuration();
  absl::MutexLock lock(&open_->mu);
  for (const Watched& request : open_->requests) {
    const bool has_time = request.num_tokens == 0 ? first_in_time : each_in_time;
    if (!has_time) continue;
    const MonotonicTime first = first_in_time ? request.arrival + targets_.ttft : request.first_token;
    earliest = std::min(earliest, first + request.num_tokens * targets_.tpot);
  }
  return earliest;
}

}  // namespace somnus
