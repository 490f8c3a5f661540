#pragma once
// A Scheduler and a FakeWorker with a pipeline in between; the outputs are collected by request.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "coordinator/scheduler/scheduler.h"
#include "tests/block_manager/replayed_cache.h"
#include "tests/fakes/fake_worker.h"

namespace somnus {

inline constexpr int32_t kSmallModelLen = 100;

inline SchedulerOptions SmallOptions(int32_t num_blocks = 64) {
  SchedulerOptions options{.max_num_seqs = 8, .max_num_batched_tokens = 16, .max_model_len = kSmallModelLen};
  options.blocks.num_blocks = num_blocks;
  options.blocks.block_size = 4;
  options.blocks.watermark = 0;
  return options;
}

inline EngineRequest MakeRequest(const std::string& id, int32_t prompt_len, int32_t max_tokens,
                                 int32_t first = 1) {
  EngineRequest request{.id = id};
  std::vector<int32_t> prompt(static_cast<size_t>(prompt_len));
  std::iota(prompt.begin(), prompt.end(), first);
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

// Gives `request` a prompt with another token at `index`; at the end: with an additional token.
inline void SetPromptToken(size_t index, int32_t token, EngineRequest* request) {
  std::vector<int32_t> prompt = request->prompt;
  prompt.resize(std::max(prompt.size(), index + 1));
  prompt[index] = token;
  request->prompt = std::move(prompt);
}

// The result of an undisturbed run.
inline std::vector<int32_t> Reference(const EngineRequest& request) {
  return FakeWorker::ReferenceTokens(request.prompt, request.max_tokens);
}

// The same up to the request's first stop token, or to the end of SmallOptions' context.
inline std::vector<int32_t> ReferenceUntilItStops(const EngineRequest& request) {
  const int32_t room = kSmallModelLen - static_cast<int32_t>(request.prompt.size());
  std::vector<int32_t> tokens =
      FakeWorker::ReferenceTokens(request.prompt, std::min(request.max_tokens, room));
  if (request.sampling->eos_token_ids.empty()) return tokens;
  const auto stop = std::find(tokens.begin(), tokens.end(), request.sampling->eos_token_ids[0]);
  if (stop != tokens.end()) tokens.erase(stop + 1, tokens.end());
  return tokens;
}

// Up to 30 prompt tokens and up to 20 of output; some prompts begin alike.
inline EngineRequest RandomRequest(const std::string& id, std::mt19937* random) {
  const auto below = [random](uint32_t bound) { return static_cast<int32_t>((*random)() % bound); };
  const int32_t prompt_len = 1 + below(30), max_tokens = 1 + below(20);
  EngineRequest request = MakeRequest(id, prompt_len, max_tokens, below(3) * 100);
  request.priority = below(3);
  return request;
}

// Gives `request` an unshared record of parameters, and returns the record for changes.
inline SamplingParams* OwnSampling(EngineRequest* request) {
  auto own = std::make_shared<SamplingParams>(*request->sampling);
  request->sampling = own;
  return own.get();
}

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<Logprobs> logprobs;
  std::vector<Logprobs> prompt_logprobs;
  std::vector<Beam> beams;
  std::vector<float> pooled;
  FinishReason reason = FinishReason::kNone;
  absl::Status error;
  std::optional<int32_t> stop_token_id;
  int32_t num_cached = 0;
  int64_t first_token_step = 0;  // the step id
};

class Harness {
 public:
  // wrong_period: of a draft model, as in FakeWorkerOptions.
  explicit Harness(const SchedulerOptions& options, size_t depth = 0, int32_t nan_token = -1,
                   int32_t wrong_period = 0)
      : scheduler(Recording(options)),
        worker(Fake(options, nan_token, wrong_period)),
        num_blocks_(options.blocks.num_blocks),
        depth_(depth),
        replayed_(options.blocks.block_size) {}

  void Add(EngineRequest request) { scheduler.Add(std::move(request)); }
  template <typename... More>
  void Add(EngineRequest request, EngineRequest next, More... more) {
    Add(std::move(request));
    Add(std::move(next), std::move(more)...);
  }
  // Adds the requests, and runs these and all earlier requests to their ends.
  template <typename... Requests>
  void Run(Requests... requests) {
    Add(std::move(requests)...);
    RunToEnd();
  }

  // Sends the next step, and takes replies beyond the depth. False when there was nothing to do.
  bool Step() {
    StepPlan plan = scheduler.Schedule();
    const bool sent = !plan.empty();
    if (sent) Send(plan);
    scheduler.Reuse(std::move(plan.request));
    if (replies_.size() > depth_ || (!sent && !replies_.empty())) {
      Receive();
      return true;
    }
    return sent;
  }

  void Send(const StepPlan& plan) {
    steps.push_back(plan.request);
    absl::StatusOr<v1::StepReply> reply = worker.Execute(plan.request);
    ASSERT_TRUE(reply.ok()) << reply.status() << "\n" << plan.request.DebugString();
    replies_.push_back(*std::move(reply));
    Check();
  }

  void Receive() {
    const int64_t step_id = replies_.front().step_id();
    absl::StatusOr<std::vector<SequenceOutput>> outputs = scheduler.Update(replies_.front());
    replies_.pop_front();
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    if (step_seconds != nullptr) {
      const auto step = std::find_if(steps.rbegin(), steps.rend(),
                                     [&](const auto& sent) { return sent.step_id() == step_id; });
      scheduler.NoteStepTime(step_seconds(*step));
    }
    for (SequenceOutput& output : *outputs) Collect(output, step_id);
    Check();
  }

  void RunToEnd() {
    for (int i = 0; i < 100000; ++i) {
      if (!Step()) return;
      if (::testing::Test::HasFatalFailure()) return;
    }
    FAIL() << "the schedule does not end";
  }

  // All books add up, and a reader who has followed the prefix cache's events knows the cache's contents.
  void Check() {
    const absl::Status integrity = scheduler.CheckIntegrity();
    ASSERT_TRUE(integrity.ok()) << integrity;
    const absl::Status some = scheduler.CheckSome();
    ASSERT_TRUE(some.ok()) << some;
    replayed_.Apply(scheduler.TakeCacheEvents());
    replayed_.ExpectIs(scheduler.blocks(), num_blocks_);
  }

  // The worker dies with steps in flight, and a new worker takes the place.
  std::vector<SequencePtr> Lose() {
    replies_.clear();
    worker.Replace();
    std::vector<SequencePtr> suspects = scheduler.Recover();
    Check();
    return suspects;
  }

  // A sleep of the KV cache that keeps as many blocks as fit into the host tier, and the wake-up.
  void Suspend() {
    while (!replies_.empty()) Receive();
    scheduler.SuspendAll();
    const StepPlan flush = scheduler.FlushFreedSlots();
    if (flush.request.freed_slots_size() > 0) Send(flush);
    while (!replies_.empty()) Receive();
  }
  void SleepKeeping() {
    Suspend();
    FakeWorker::BlockPairs kept;
    for (const KeptBlock& block : scheduler.kept().Choose())
      kept.emplace_back(block.device_block, block.host_block);
    worker.CopyToHost(kept, scheduler.blocks().swapped().Sources());
    ASSERT_TRUE(worker.Sleep().ok());
    scheduler.kept().ForgetUnkept(/*keeps_swapped=*/true);
    Check();
  }
  void WakeKeeping() {
    FakeWorker::BlockPairs kept;
    for (const KeptBlock& block : scheduler.blocks().kept().blocks())
      kept.emplace_back(block.device_block, block.host_block);
    ASSERT_TRUE(worker.CopyFromHost(kept).ok());
    scheduler.kept().Restore();
    Check();
  }

  size_t in_flight() const { return replies_.size(); }

  Scheduler scheduler;
  FakeWorker worker;
  std::map<std::string, Answer> answers;
  std::vector<v1::StepRequest> steps;
  // The duration of a step, for the scheduler; null: the scheduler is not told.
  std::function<double(const v1::StepRequest&)> step_seconds;

 private:
  static SchedulerOptions Recording(SchedulerOptions options) {
    options.blocks.records_events = true;
    return options;
  }
  static FakeWorkerOptions Fake(const SchedulerOptions& options, int32_t nan_token, int32_t wrong_period) {
    FakeWorkerOptions fake{.nan_token = nan_token, .wrong_period = wrong_period};
    if (options.speculation.asks_workers) fake.max_proposals = options.speculation.num_speculative_tokens;
    fake.num_blocks = options.blocks.num_blocks;
    fake.block_size = options.blocks.block_size;
    fake.window = static_cast<int32_t>(options.blocks.attention_reach);
    fake.max_num_seqs = options.max_num_seqs;
    fake.max_num_batched_tokens = options.max_num_batched_tokens;
    return fake;
  }

  void Collect(SequenceOutput& output, int64_t step_id) {
    Answer& answer = answers[output.sequence->request.id];
    ASSERT_EQ(answer.reason, FinishReason::kNone) << "output after the last one";
    if (answer.tokens.empty() && !output.output.token_ids.empty()) answer.first_token_step = step_id;
    for (int32_t token : output.output.token_ids) answer.tokens.push_back(token);
    for (Logprobs& logprobs : output.output.logprobs) answer.logprobs.push_back(std::move(logprobs));
    for (Logprobs& logprobs : output.output.prompt_logprobs)
      answer.prompt_logprobs.push_back(std::move(logprobs));
    answer.pooled = std::move(output.output.pooled);
    answer.beams = std::move(output.output.beams);
    answer.reason = output.output.finish_reason;
    answer.error = output.output.error;
    answer.stop_token_id = output.output.stop_token_id;
    answer.num_cached = output.output.num_cached_tokens;
  }

  const int32_t num_blocks_;
  const size_t depth_;
  ReplayedCache replayed_;
  std::deque<v1::StepReply> replies_;
};

}  // namespace somnus
