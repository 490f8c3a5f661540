#pragma once
// The events of an engine's loop, at once, for metrics and for engines around the engine. Plain
// values; the observer's methods are called on the loop's thread.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/monotonic.h"
#include "coordinator/block_manager/block_stay.h"
#include "coordinator/request/expiry.h"
#include "coordinator/request/preemption_counts.h"
#include "coordinator/request/request.h"
#include "coordinator/residency/self_check.h"
#include "coordinator/residency/transition_report.h"

namespace somnus {

// A step after its reply was applied. Times are monotonic.
struct StepEvent {
  int64_t step_id = 0;
  int64_t group_epoch = 0;
  int32_t replica = 0;  // that computed the step
  int32_t num_tokens = 0;
  int32_t num_sequences = 0;  // that computed tokens
  int32_t num_decodes = 0;    // the sequences with a single token beside draft tokens
  int32_t num_draft_tokens = 0;
  int32_t num_accepted_tokens = 0;  // draft tokens that were right
  int32_t num_new = 0;              // sequences that the workers did not have
  int32_t num_forks = 0;
  int32_t num_copies = 0;     // blocks, copied before the step
  int32_t num_swap_outs = 0;  // blocks, copied to host memory before the step
  int32_t num_swap_ins = 0;   // and back
  // The decisions of the scheduler since the step before.
  std::array<int32_t, kPreemptionCauses.size()> preempted_by_swap = {};  // requests, by PreemptionCause
  std::array<int32_t, kPreemptionCauses.size()> preempted_by_recompute = {};
  std::array<int32_t, kSwapObstacles.size()> swap_obstacles = {};  // as SwapCounts::obstacles
  int32_t num_watermark_refusals = 0;
  int32_t num_cached_tokens = 0;  // from the prefix cache, of prompts that were scheduled first
  int32_t num_running = 0;        // after the step was scheduled, as the next two fields
  int32_t num_waiting = 0;
  int32_t used_blocks = 0;
  absl::Duration schedule;  // the time that the scheduler took to plan the step
  absl::Duration masks;     // the time that the masks of constrained sequences took; zero: there were none
  MonotonicTime sent;
  MonotonicTime replied;
  absl::Duration duration;  // until `replied`, without the wait for the reply of the step before
};

// A reload or an update that has ended well.
struct WeightsEvent {
  bool updates = false;  // false: a reload
  absl::Duration duration;
  int64_t version = 0;  // of the weights
  std::string source;   // as Weights::source
};

// A sleep or a wake-up that has ended well and changed something.
struct TransitionEvent {
  bool wakes = false;
  int level = 0;  // of the whole engine, after the transition
  absl::Duration duration;
  TransitionReport report;
};

// A self-check that was not a failure of the group.
struct SelfCheckEvent {
  SelfCheckOutcome outcome = SelfCheckOutcome::kTaken;
  absl::Duration duration;  // of the check alone
};

// Tokens that a request has got from one step.
struct TokensEvent {
  int32_t num_tokens = 1;
  bool has_first = false;  // the request had none before
  absl::Duration wait;     // since its last tokens; of the first since its arrival
};

// A request that has ended.
struct FinishedRequest {
  FinishReason reason = FinishReason::kNone;
  int32_t num_output_tokens = 0;
  int32_t num_cached_tokens = 0;  // of the prompt
  int32_t num_preemptions = 0;
  RequestMoments moments;
  absl::Time finished;
};

// How many tokens the router sent to experts in a step: a rank's part of the layers and of the experts. The
// memory is the caller's.
struct ExpertLoadEvent {
  absl::Span<const int32_t> layers;  // of the whole model
  int32_t first_expert = 0;
  int32_t num_experts = 0;
  absl::Span<const uint32_t> tokens;  // [layers][num_experts]
};

// Receives the loop's events, for metrics. The methods are called on the loop thread and must not block.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  // The request was scheduled for the first time.
  virtual void OnRequestScheduled(const EngineRequest& /*request*/) {}
  virtual void OnTokens(const TokensEvent& /*event*/) {}
  // A request ends because its time is over; OnRequestFinished follows.
  virtual void OnRequestExpired(ExpiryCause /*cause*/) {}
  virtual void OnStep(const StepEvent& event) = 0;
  virtual void OnExpertLoad(const ExpertLoadEvent& /*event*/) {}
  // The group is whole again, `duration` after the loss.
  virtual void OnRecovered(absl::Duration duration) = 0;
  virtual void OnTransition(const TransitionEvent& /*event*/) {}
  virtual void OnWeightsChanged(const WeightsEvent& /*event*/) {}
  virtual void OnSelfCheck(const SelfCheckEvent& /*event*/) {}
  // Sampled blocks of the KV cache that were cached and were given to other sequences.
  virtual void OnBlocksEvicted(const std::vector<BlockStay>& /*stays*/) {}
  virtual void OnRequestFinished(const EngineRequest& request, const FinishedRequest& end) = 0;
};

// Passes every event on to the observer `next`, which is borrowed and may be null.
class PassingObserver : public EngineObserver {
 public:
  explicit PassingObserver(EngineObserver* next) : next_(next) {}

  void OnRequestScheduled(const EngineRequest& request) override {
    if (next_ != nullptr) next_->OnRequestScheduled(request);
  }
  void OnTokens(const TokensEvent& event) override {
    if (next_ != nullptr) next_->OnTokens(event);
  }
  void OnRequestExpired(ExpiryCause cause) override {
    if (next_ != nullptr) next_->OnRequestExpired(cause);
  }
  void OnStep(const StepEvent& event) override {
    if (next_ != nullptr) next_->OnStep(event);
  }
  void OnExpertLoad(const ExpertLoadEvent& event) override {
    if (next_ != nullptr) next_->OnExpertLoad(event);
  }
  void OnRecovered(absl::Duration duration) override {
    if (next_ != nullptr) next_->OnRecovered(duration);
  }
  void OnTransition(const TransitionEvent& event) override {
    if (next_ != nullptr) next_->OnTransition(event);
  }
  void OnWeightsChanged(const WeightsEvent& event) override {
    if (next_ != nullptr) next_->OnWeightsChanged(event);
  }
  void OnSelfCheck(const SelfCheckEvent& event) override {
    if (next_ != nullptr) next_->OnSelfCheck(event);
  }
  void OnBlocksEvicted(const std::vector<BlockStay>& stays) override {
    if (next_ != nullptr) next_->OnBlocksEvicted(stays);
  }
  void OnRequestFinished(const EngineRequest& request, const FinishedRequest& end) override {
    if (next_ != nullptr) next_->OnRequestFinished(request, end);
  }

 private:
  EngineObserver* const next_;
};

}  // namespace somnus
