#pragma once
// An engine that repeats its prompt, and a tokenizer of bytes: enough to test everything above the engine.

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "coordinator/engine/caller.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/engine_report.h"
#include "coordinator/engine/prefix_book.h"
#include "coordinator/openai/served_model.h"
#include "tests/api/byte_tokenizer.h"
#include "tests/api/fake_outputs.h"

namespace somnus {

// Gives every open request one token per step: the prompt's bytes, over and over. Stops at EOS, stop ids and
// max_tokens.
class FakeEngine : public Engine {
 public:
  explicit FakeEngine(absl::Duration step = absl::Microseconds(200), size_t max_open = 1024)
      : step_(step), max_open_(max_open), thread_([this] { Run(); }) {}
  ~FakeEngine() override {
    stop_ = true;
    thread_.join();
  }

  absl::Status SubmitAll(std::vector<EngineRequest> requests) override {
    absl::MutexLock lock(&mutex_);
    if (!submit_status_.ok()) return submit_status_;
    const bool admits =
        state_ == EngineState::kAwake || state_ == EngineState::kRecovering || state_ == EngineState::kPaused;
    if (!admits) return absl::UnavailableError("not serving");
    if (open_.size() + requests.size() > max_open_) return absl::ResourceExhaustedError("the queue is full");
    for (EngineRequest& request : requests) {
      seeds_.push_back(request.seed);
      last_sampling_ = *request.sampling;
      samplings_.insert(request.sampling);
      prompts_.push_back(request.prompt);
      priorities_.push_back(request.priority);
      last_request_ = request;
      open_.push_back(Open{std::move(request), 0});
    }
    return absl::OkStatus();
  }
  void Abort(const std::string& request_id) override {
    absl::MutexLock lock(&mutex_);
    for (Open& open : open_) {
      if (open.request.id == request_id) open.aborted = true;
    }
  }

  EngineState state() const override { return Stats().state; }
  absl::Status Health() const override {
    const StateReport report = ReportState(Stats());
    return report.serving() ? absl::OkStatus() : absl::UnavailableError(report.Line());
  }
  void OnStateChange(std::function<void()> callback) override {
    if (callback) callback();
  }
  EngineStats Stats() const override {
    absl::MutexLock lock(&mutex_);
    EngineStats stats;
    stats.state = state_;
    stats.stall = stall_;
    stats.note = {.since = absl::FromUnixSeconds(1'700'000'000), .why = "the test has said so"};
    if (state_ == EngineState::kFailed) stats.error = "the test has said so";
    stats.sleep_level = sleep_level_;
    stats.paused = paused_;
    stats.num_running = static_cast<int32_t>(open_.size());
    stats.total_blocks = 100;
    stats.generation_tokens = tokens_;
    stats.group_epoch = 3;
    stats.num_recoveries = 2;
    stats.weights_version = weights_version_;
    stats.weights_source = "/models/fake";
    stats.preemptions.Add(PreemptionCause::kPriority, /*swaps=*/true);
    stats.queue_time = absl::Seconds(1.5);
    if (state_ == EngineState::kAsleep) stats.oldest_wait = absl::Seconds(3);
    return stats;
  }
  // One running request that shares a block, and one in the common queue.
  EngineViews View() override {
    auto view = std::make_shared<EngineView>();
    view->max_requests = 200;
    view->taken = MonotonicNow();
    view->blocks = "12c.";
    view->requests.push_back(
        {.id = "chat-1", .state = "running", .arrival = absl::Now(), .num_prompt_tokens = 7});
    auto queue = std::make_shared<EngineView>();
    queue->max_requests = 200;
    queue->replica = kCommonQueue;
    queue->requests.push_back({.id = "chat-2", .state = "waiting", .arrival = absl::Now()});
    return {queue, view};
  }
  LifecycleResult Run(const LifecycleRequest& request) override {
    return VisitRequest(request, [this](const auto& one) { return Do(one); });
  }
  PinnedPrefixes& pinned_prefixes() override { return prefixes_; }
  int num_aborted_calls() const { return num_aborted_calls_; }
  void DrainAndStop(absl::Duration) override { set_state(EngineState::kDraining); }
  int32_t max_model_len() const override { return 4096; }
  int32_t vocab_size() const override { return 257; }

  // The arguments of the last calls, and the results of Pause and Submit.
  SamplingParams last_sampling() const {
    absl::MutexLock lock(&mutex_);
    return last_sampling_;
  }
  SleepRequest last_sleep() const {
    absl::MutexLock lock(&mutex_);
    return last_sleep_;
  }
  PauseRequest last_pause() const {
    absl::MutexLock lock(&mutex_);
    return last_pause_;
  }
  bool preempt_running() const {
    absl::MutexLock lock(&mutex_);
    return preempt_running_;
  }
  void set_pause_status(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    pause_status_ = status;
  }
  // While held, a WakeUp waits, but not longer than the client.
  void HoldWakeUps(bool held) { hold_wake_ups_ = held; }
  int num_waking() const { return num_waking_; }
  void HoldUpdateEnds(bool held) {  // no update can be destroyed while they are held
    absl::MutexLock lock(&mutex_);
    hold_update_ends_ = held;
  }
  void set_wake_status(const absl::Status& status) {  // the error that WakeUp returns
    absl::MutexLock lock(&mutex_);
    wake_status_ = status;
  }
  // The argument of the last ReloadWeights or BeginWeightUpdate, and the results of both and of Finish.
  WeightsRequest last_reload() const {
    absl::MutexLock lock(&mutex_);
    return last_reload_;
  }
  void set_weights_status(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    weights_status_ = status;
  }
  int num_updates() const { return num_updates_; }  // that clients have
  std::vector<std::string> chunks() const {         // names of updates' tensors
    absl::MutexLock lock(&mutex_);
    return chunks_;
  }
  std::optional<bool> load_weights() const {
    absl::MutexLock lock(&mutex_);
    return load_weights_;
  }
  void set_submit_status(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    submit_status_ = status;
  }
  // The result of Roll, and the grace of the last call.
  void set_roll_status(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    roll_status_ = status;
  }
  absl::Duration roll_grace() const {
    absl::MutexLock lock(&mutex_);
    return roll_grace_;
  }
  void set_state(EngineState state) {
    absl::MutexLock lock(&mutex_);
    state_ = state;
  }
  void set_stall(const absl::Status& stall) {  // the result of Health while the engine is awake
    absl::MutexLock lock(&mutex_);
    stall_ = stall;
  }
  // From now on every request fails after this many tokens.
  void FailAfter(int tokens, absl::Status error) {
    absl::MutexLock lock(&mutex_);
    fail_after_ = tokens;
    error_ = std::move(error);
  }
  void LoseAfter(int64_t tokens) {  // then the engine recovers, until set_state
    absl::MutexLock lock(&mutex_);
    lose_after_ = tokens;
  }
  size_t num_open() const {
    absl::MutexLock lock(&mutex_);
    return open_.size();
  }
  int num_aborted() const { return aborted_; }
  std::vector<uint64_t> seeds() const {
    absl::MutexLock lock(&mutex_);
    return seeds_;
  }
  size_t num_prompts() const {  // distinct vectors of prompts' token ids so far
    absl::MutexLock lock(&mutex_);
    std::set<const int32_t*> ids;
    for (const PromptIds& prompt : prompts_) ids.insert(prompt.data());
    return ids.size();
  }
  size_t num_samplings() const {  // distinct records of sampling parameters so far
    absl::MutexLock lock(&mutex_);
    return samplings_.size();
  }
  std::vector<int32_t> priorities() const {
    absl::MutexLock lock(&mutex_);
    return priorities_;
  }
  EngineRequest last_request() const {
    absl::MutexLock lock(&mutex_);
    return last_request_;
  }
  // Returns true as soon as no request is open, false after `timeout`.
  bool WaitIdle(absl::Duration timeout = absl::Seconds(20)) const {
    const absl::Time deadline = absl::Now() + timeout;
    while (num_open() > 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(2));
    return num_open() == 0;
  }

 private:
  class Update : public WeightUpdate {
   public:
    Update(FakeEngine* engine, const WeightsRequest& request) : engine_(engine), version_(request.version) {
      ++engine_->num_updates_;
      if (request.port_token.empty()) return;
      ports_.emplace_back().set_address("for " + request.port_token);
    }
    ~Update() override {
      absl::MutexLock lock(&engine_->mutex_);
      const auto may_end = [this] { return !engine_->hold_update_ends_; };
      engine_->mutex_.Await(absl::Condition(&may_end));
      --engine_->num_updates_;
    }
    absl::Status Send(v1::WeightChunk chunk) override {
      absl::MutexLock lock(&engine_->mutex_);
      if (!engine_->weights_status_.ok()) return engine_->weights_status_;
      engine_->chunks_.push_back(chunk.name());
      num_bytes_ += static_cast<int64_t>(chunk.data().size());
      return absl::OkStatus();
    }
    absl::Status status() const override {
      absl::MutexLock lock(&engine_->mutex_);
      return engine_->update_status_;
    }
    std::vector<v1::UpdatePort> ports() const override { return ports_; }
    absl::StatusOr<WeightsChange> Finish(const std::optional<ReceivedWeights>& expected) override {
      absl::MutexLock lock(&engine_->mutex_);
      if (expected.has_value() && expected->num_bytes != 7) return absl::DataLossError("not what has come");
      if (!engine_->weights_status_.ok()) return engine_->weights_status_;
      engine_->weights_version_ = version_ > 0 ? version_ : 2;
      return WeightsChange{.version = engine_->weights_version_,
                           .received = {.num_tensors = 1, .num_bytes = num_bytes_}};
    }

   private:
    FakeEngine* const engine_;
    const int64_t version_;
    std::vector<v1::UpdatePort> ports_;  // of a direct update: a single port
    int64_t num_bytes_ = 0;
  };

  // The kinds of lifecycle requests.
  absl::StatusOr<TransitionReport> Do(const SleepRequest& request) {
    absl::MutexLock lock(&mutex_);
    last_sleep_ = request;
    state_ = EngineState::kAsleep;
    const bool changed = sleep_level_ < request.level;
    if (changed) sleep_level_ = request.level;
    return FakeReport({sleep_level_ == 2 ? TagState::kDiscarded : TagState::kBackedUp, changed},
                      {.freed_bytes = 7});
  }
  absl::StatusOr<TransitionReport> Do(const WakeUpRequest& request) {
    ++num_waking_;
    while (hold_wake_ups_ && CheckCaller().ok()) absl::SleepFor(absl::Milliseconds(1));
    --num_waking_;
    if (absl::Status caller = CheckCaller(); !caller.ok()) return caller;
    absl::MutexLock lock(&mutex_);
    if (!wake_status_.ok()) return wake_status_;
    load_weights_ = request.load_weights;
    state_ = EngineState::kAwake;
    paused_ = false;
    return FakeReport({TagState::kResident, std::exchange(sleep_level_, 0) > 0}, {.mapped_bytes = 7});
  }
  absl::Status Do(const PrefetchRequest&) { return absl::OkStatus(); }
  absl::StatusOr<TransitionReport> Do(const WakeForArrivalsRequest&) { return Do(WakeUpRequest()); }
  absl::Status Do(const EndWaitingRequest&) { return absl::OkStatus(); }
  absl::Status Do(const PauseRequest& request) {
    absl::MutexLock lock(&mutex_);
    last_pause_ = request;
    if (!pause_status_.ok()) return pause_status_;
    paused_ = true;
    if (state_ == EngineState::kAwake) state_ = EngineState::kPaused;
    return absl::OkStatus();
  }
  absl::Status Do(const ResumeRequest&) {
    absl::MutexLock lock(&mutex_);
    paused_ = false;
    if (state_ == EngineState::kPaused) state_ = EngineState::kAwake;
    return absl::OkStatus();
  }
  absl::StatusOr<WeightsChange> Do(const ReloadWeightsRequest& request) {
    absl::MutexLock lock(&mutex_);
    last_reload_ = request.weights;
    if (!weights_status_.ok()) return weights_status_;
    weights_version_ = request.weights.version > 0 ? request.weights.version : weights_version_ + 1;
    return WeightsChange{.version = weights_version_};
  }
  absl::StatusOr<std::unique_ptr<WeightUpdate>> Do(const UpdateWeightsRequest& request) {
    absl::MutexLock lock(&mutex_);
    last_reload_ = request.weights;
    if (!weights_status_.ok()) return weights_status_;
    update_status_ = absl::OkStatus();
    weights_version_ = 0;
    return std::make_unique<Update>(this, request.weights);
  }
  absl::StatusOr<int32_t> Do(const ResizeKvCacheRequest& request) { return request.total_blocks; }
  absl::Status Do(const ResetPrefixCacheRequest& request) {
    absl::MutexLock lock(&mutex_);
    preempt_running_ = request.preempt_running;
    return absl::OkStatus();
  }
  absl::StatusOr<TransitionReport> Do(const SetAdaptersRequest& request) {
    TransitionReport report;
    for (const HeldAdapter& adapter : request.adapters) report.adapters[adapter.id] = adapter.path;
    return report;
  }
  absl::Status Do(const ReviveRequest&) { return absl::FailedPreconditionError("nothing has failed"); }
  absl::Status Do(const RollRequest& request) {
    absl::MutexLock lock(&mutex_);
    roll_grace_ = request.grace;
    return roll_status_;
  }
  absl::Status Do(const AbortCallRequest&) {
    absl::MutexLock lock(&mutex_);
    update_status_ = absl::AbortedError(kEndedByOperator);
    ++num_aborted_calls_;
    return absl::OkStatus();
  }

  struct Open {
    EngineRequest request;
    int32_t made;
    bool aborted = false;
  };
  // Makes one token for `open`; returns true when `open` has ended.
  bool Step(Open* open) {
    const SamplingParams& sampling = *open->request.sampling;
    RequestOutput output;
    if (open->aborted) {
      ++aborted_;
      output.finish_reason = FinishReason::kAbort;
    } else if (fail_after_ >= 0 && open->made >= fail_after_) {
      output.finish_reason = FinishReason::kError;
      output.error = error_;
    } else if (sampling.beam_search.has_value()) {
      if (++open->made == open->request.max_tokens) output = FakeAnswers(open->request);
    } else if (open->request.pooling != Pooling::kNone) {
      output = FakePooled(open->request, weights_version_);
    } else {
      output = FakeOutput(open->request, open->made++, weights_version_);
      ++tokens_;
    }
    const bool ended = output.finish_reason != FinishReason::kNone;
    open->request.sink->OnOutput(std::move(output));
    return ended;
  }
  void Run() {
    while (!stop_) {
      {
        absl::MutexLock lock(&mutex_);
        if (state_ == EngineState::kAwake) {
          for (auto it = open_.begin(); it != open_.end();) it = Step(&*it) ? open_.erase(it) : it + 1;
          if (lose_after_ >= 0 && tokens_ >= lose_after_) {
            state_ = EngineState::kRecovering;
            lose_after_ = -1;
          }
        }
      }
      absl::SleepFor(step_);
    }
  }

  const absl::Duration step_;
  const size_t max_open_;
  // The pins of a cache of 1024 blocks of 16 tokens, which holds nothing: no scheduler is told.
  PrefixBook prefixes_{{}, {.max_model_len = 4096, .blocks = {.num_blocks = 1025}}, [] {}};
  mutable absl::Mutex mutex_;
  EngineState state_ = EngineState::kAwake;
  absl::Status stall_;
  absl::Status roll_status_;
  absl::Status pause_status_;
  absl::Status wake_status_;
  absl::Status submit_status_;
  std::atomic<bool> hold_wake_ups_{false};
  std::atomic<int> num_waking_{0}, num_aborted_calls_{0}, num_updates_{0};
  bool hold_update_ends_ = false;
  absl::Status weights_status_, update_status_;
  WeightsRequest last_reload_;
  int64_t weights_version_ = 1;
  std::vector<std::string> chunks_;
  std::optional<bool> load_weights_;
  bool paused_ = false;
  bool preempt_running_ = false;
  SleepRequest last_sleep_;
  PauseRequest last_pause_;
  absl::Duration roll_grace_;
  int sleep_level_ = 0;
  std::vector<Open> open_;
  std::vector<uint64_t> seeds_;
  SamplingParams last_sampling_;
  std::set<std::shared_ptr<const SamplingParams>> samplings_;
  std::vector<PromptIds> prompts_;
  std::vector<int32_t> priorities_;
  EngineRequest last_request_;
  int fail_after_ = -1;
  int64_t lose_after_ = -1;
  absl::Status error_;
  std::atomic<int64_t> tokens_{0};
  std::atomic<int> aborted_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

inline ServedModel FakeModel(std::shared_ptr<FakeEngine> engine) {
  ServedModel model;
  model.name = "fake";
  model.engine = std::move(engine);
  model.tokenizer = std::make_shared<ByteTokenizer>();
  model.config.vocab_size = 257;
  model.config.embedding_dim = kFakeWidth;
  model.config.eos_token_ids = {ByteTokenizer::kEos};
  model.max_token_bytes = LongestToken(*model.tokenizer);
  return model;
}

}  // namespace somnus
