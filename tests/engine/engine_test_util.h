#pragma once
// An EngineLoop over a FakeExecutor, and sinks that wait.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "coordinator/engine/engine_loop.h"
#include "tests/fakes/fake_executor.h"

namespace somnus {

class CollectingSink : public OutputSink {
 public:
  void OnOutput(RequestOutput output) override {
    absl::MutexLock lock(&mu_);
    outputs_after_end_ += done_;
    tokens_.insert(tokens_.end(), output.token_ids.begin(), output.token_ids.end());
    Append(output.logprobs, &logprobs_);
    Append(output.prompt_logprobs, &prompt_logprobs_);
    if (!output.pooled.empty()) pooled_ = output.pooled;
    num_cached_tokens_ = output.num_cached_tokens;
    if (!output.token_ids.empty()) weights_versions_.insert(output.weights_version);
    if (output.finish_reason == FinishReason::kNone) return;
    reason_ = output.finish_reason;
    error_ = output.error;
    done_ = true;
  }

  // Waits for the last output. False when no last output came within a minute.
  bool Wait() {
    absl::MutexLock lock(&mu_);
    return mu_.AwaitWithTimeout(absl::Condition(&done_), absl::Minutes(1));
  }
  // Waits for that many tokens, or the last output. False when the tokens have not come within a minute.
  bool WaitForTokens(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return tokens_.size() >= count || done_; };
    return mu_.AwaitWithTimeout(absl::Condition(&enough), absl::Minutes(1));
  }
  std::vector<int32_t> tokens() const {
    absl::MutexLock lock(&mu_);
    return tokens_;
  }
  std::vector<float> pooled() const {
    absl::MutexLock lock(&mu_);
    return pooled_;
  }
  // Token and log-probability of each output, and of each token of the prompt that has a log-probability.
  using TokenLogprobs = std::vector<std::pair<int32_t, float>>;
  TokenLogprobs logprobs() const {
    absl::MutexLock lock(&mu_);
    return logprobs_;
  }
  TokenLogprobs prompt_logprobs() const {
    absl::MutexLock lock(&mu_);
    return prompt_logprobs_;
  }
  int32_t num_cached_tokens() const {
    absl::MutexLock lock(&mu_);
    return num_cached_tokens_;
  }
  // The versions of the weights that computed the tokens.
  std::set<int64_t> weights_versions() const {
    absl::MutexLock lock(&mu_);
    return weights_versions_;
  }
  FinishReason reason() const {
    absl::MutexLock lock(&mu_);
    return reason_;
  }
  absl::Status error() const {
    absl::MutexLock lock(&mu_);
    return error_;
  }
  bool done() const {
    absl::MutexLock lock(&mu_);
    return done_;
  }
  int outputs_after_end() const {
    absl::MutexLock lock(&mu_);
    return outputs_after_end_;
  }

 private:
  static void Append(const std::vector<Logprobs>& from, TokenLogprobs* to) {
    for (const Logprobs& logprobs : from) {
      if (logprobs.token_ids.empty()) continue;
      to->emplace_back(logprobs.token_ids[0], logprobs.logprobs[0]);
    }
  }

  mutable absl::Mutex mu_;
  std::vector<int32_t> tokens_ ABSL_GUARDED_BY(mu_);
  std::vector<float> pooled_ ABSL_GUARDED_BY(mu_);
  TokenLogprobs logprobs_ ABSL_GUARDED_BY(mu_);
  TokenLogprobs prompt_logprobs_ ABSL_GUARDED_BY(mu_);
  int32_t num_cached_tokens_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<int64_t> weights_versions_ ABSL_GUARDED_BY(mu_);
  FinishReason reason_ ABSL_GUARDED_BY(mu_) = FinishReason::kNone;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  int outputs_after_end_ ABSL_GUARDED_BY(mu_) = 0;
};

struct Ticket {
  EngineRequest request;
  std::shared_ptr<CollectingSink> sink = std::make_shared<CollectingSink>();
};

inline Ticket MakeTicket(const std::string& id, int32_t prompt_len, int32_t max_tokens, int32_t first = 1) {
  Ticket ticket;
  ticket.request.id = id;
  std::vector<int32_t> prompt(static_cast<size_t>(prompt_len));
  std::iota(prompt.begin(), prompt.end(), first);
  ticket.request.prompt = std::move(prompt);
  ticket.request.max_tokens = max_tokens;
  ticket.request.arrival = absl::Now();
  ticket.request.sink = ticket.sink;
  return ticket;
}

inline std::vector<int32_t> Reference(const Ticket& ticket) {
  return FakeWorker::ReferenceTokens(ticket.request.prompt, ticket.request.max_tokens);
}

inline EngineOptions SmallEngine(bool async_scheduling = true) {
  EngineOptions options;
  options.scheduler.max_num_seqs = 4;
  options.scheduler.max_num_batched_tokens = 16;
  options.scheduler.max_model_len = 200;
  options.scheduler.blocks.num_blocks = 64;
  options.scheduler.blocks.block_size = 4;
  options.scheduler.blocks.watermark = 0;
  options.async_scheduling = async_scheduling;
  options.queue.max_num_waiting = 16;
  options.vocab_size = 1000;
  options.step_timeout = absl::Seconds(60);
  return options;
}

// Blocks for about two requests of 72 tokens, and preemption by swap.
inline EngineOptions SwappingEngine(bool async_scheduling = true) {
  EngineOptions options = SmallEngine(async_scheduling);
  options.scheduler.preemption = PreemptionMode::kSwap;
  options.scheduler.max_model_len = 100;
  options.scheduler.blocks.num_blocks = 31;
  options.scheduler.blocks.num_host_blocks = 128;
  options.scheduler.blocks.enable_prefix_caching = false;
  return options;
}

inline FakeWorkerOptions SmallWorker(const EngineOptions& options) {
  FakeWorkerOptions fake;
  fake.num_blocks = options.scheduler.blocks.num_blocks;
  fake.block_size = options.scheduler.blocks.block_size;
  fake.max_num_seqs = options.scheduler.max_num_seqs;
  fake.max_num_batched_tokens = options.scheduler.max_num_batched_tokens;
  fake.vocab_size = options.vocab_size;
  fake.window = static_cast<int32_t>(options.scheduler.blocks.attention_reach);
  return fake;
}

class RecordingObserver : public EngineObserver {
 public:
  void OnStep(const StepEvent& event) override {
    absl::MutexLock lock(&mu_);
    step_tokens_ += event.num_tokens;
    steps_.push_back(event);
  }
  void OnRecovered(absl::Duration duration) override {
    absl::MutexLock lock(&mu_);
    ++num_recoveries_;
    recovery_time_ += duration;
  }
  void OnTokens(const TokensEvent& event) override {
    absl::MutexLock lock(&mu_);
    num_first_tokens_ += event.has_first;
    delivered_tokens_ += event.num_tokens;
  }
  void OnRequestFinished(const EngineRequest& request, const FinishedRequest& end) override {
    absl::MutexLock lock(&mu_);
    finished_.push_back(request.id);
    times_are_ordered_ = times_are_ordered_ && request.arrival <= end.moments.scheduled &&
                         end.moments.scheduled <= end.moments.first_token &&
                         end.moments.first_token <= end.finished;
    output_tokens_ += end.num_output_tokens;
  }
  int64_t step_tokens() const {
    absl::MutexLock lock(&mu_);
    return step_tokens_;
  }
  std::vector<StepEvent> steps() const {
    absl::MutexLock lock(&mu_);
    return steps_;
  }
  int64_t num_recoveries() const {
    absl::MutexLock lock(&mu_);
    return num_recoveries_;
  }
  absl::Duration recovery_time() const {
    absl::MutexLock lock(&mu_);
    return recovery_time_;
  }
  std::vector<std::string> finished() const {
    absl::MutexLock lock(&mu_);
    return finished_;
  }
  bool times_are_ordered() const {
    absl::MutexLock lock(&mu_);
    return times_are_ordered_;
  }
  int64_t output_tokens() const {
    absl::MutexLock lock(&mu_);
    return output_tokens_;
  }
  int64_t num_first_tokens() const {
    absl::MutexLock lock(&mu_);
    return num_first_tokens_;
  }
  int64_t delivered_tokens() const {
    absl::MutexLock lock(&mu_);
    return delivered_tokens_;
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<std::string> finished_ ABSL_GUARDED_BY(mu_);
  int64_t step_tokens_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<StepEvent> steps_ ABSL_GUARDED_BY(mu_);
  int64_t output_tokens_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t num_first_tokens_ ABSL_GUARDED_BY(mu_) = 0, delivered_tokens_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t num_recoveries_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Duration recovery_time_ ABSL_GUARDED_BY(mu_);
  bool times_are_ordered_ ABSL_GUARDED_BY(mu_) = true;
};

// The parts of the line of a state that is not "serving" (coordinator/residency/state_report.h): the sentence
// for clients, and the reason.
inline std::string What(const absl::Status& health) {
  const std::string line(health.message());
  return line.substr(0, line.find(" Why: "));
}
inline std::string Why(const absl::Status& health) {
  const std::string line(health.message());
  const size_t begin = std::min(line.find(" Why: ") + 6, line.size());
  return line.substr(begin, line.find(". Since: ") - begin);
}

}  // namespace somnus
