#pragma once
// One served model: the step loop, and the only state that says whether it can serve.
//
// Contract. 1. One loop thread owns the scheduler, the block manager and all requests; everything else
// reaches them through this interface's command queue, so every method is thread safe. 2. Under
// async_scheduling step k+1 is scheduled and sent before step k's reply is handled, else after; both give the
// same tokens. 3. Admission, health, is_sleeping and metrics read state(), and nothing else says whether the
// engine serves; residency/engine_state.h says what each state means and which changes are allowed. 4. Every
// accepted request ends in exactly one output with a finish_reason.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/engine/engine_observer.h"
#include "coordinator/engine/engine_stats.h"
#include "coordinator/engine/engine_view.h"
#include "coordinator/engine/lifecycle_requests.h"
#include "coordinator/engine/pinned_prefixes.h"
#include "coordinator/engine/weight_update.h"
#include "coordinator/request/request.h"
#include "coordinator/residency/engine_state.h"
#include "coordinator/residency/transition_report.h"

namespace somnus {

class Engine {
 public:
  virtual ~Engine() = default;

  // Submits requests, all or none (n choices, a list of prompts). Ok: the sink of each will get a final
  // output. ResourceExhausted: the queue is full. InvalidArgument: a request can never be served (beyond
  // max_model_len or the whole cache), or its id is in use. Unavailable: the engine is loading, draining or
  // failed. While it sleeps or is paused, requests are queued within the same bounds.
  // The call decides atomically, and is cheap enough for an I/O thread.
  virtual absl::Status SubmitAll(std::vector<EngineRequest> requests) = 0;
  absl::Status Submit(EngineRequest request);
  // The request ends with kAbort and its blocks are free within one step. Unknown ids are ignored.
  virtual void Abort(const std::string& request_id) = 0;

  virtual EngineState state() const = 0;
  // Ok exactly when a request that came now would be served without anybody's doing: the engine is awake, and
  // no step has been under way for longer than the stall threshold. Unavailable has the line of
  // engine_report.h.
  virtual absl::Status Health() const = 0;
  // `callback` runs now and after every change of state(), on the thread that made it and one at a time; it
  // reads state() itself and must not block. An empty one removes it: none runs afterwards.
  virtual void OnStateChange(std::function<void()> callback) = 0;
  virtual EngineStats Stats() const = 0;
  // The last pictures of the loops, for people who watch, at once; asks the loops for newer pictures
  // (view_board.h).
  virtual EngineViews View() = 0;

  // Carries a lifecycle request out, and blocks the caller until the result is known. lifecycle_requests.h
  // says what each kind does.
  virtual LifecycleResult Run(const LifecycleRequest& request) = 0;
  // Run with a request of the kind that the function's name says.
  absl::StatusOr<TransitionReport> Sleep(const SleepRequest& request);
  absl::StatusOr<TransitionReport> WakeUp(const std::vector<std::string>& tags,
                                          std::optional<bool> load_weights = std::nullopt);
  absl::StatusOr<TransitionReport> WakeForArrivals();
  void EndWaiting(const absl::Status& error);
  absl::Status Prefetch();
  absl::Status Pause(const PauseRequest& request);
  absl::Status Resume();
  absl::StatusOr<WeightsChange> ReloadWeights(const WeightsRequest& request);
  absl::StatusOr<std::unique_ptr<WeightUpdate>> BeginWeightUpdate(const WeightsRequest& request);
  absl::StatusOr<int32_t> ResizeKvCache(int32_t total_blocks);
  absl::Status ResetPrefixCache(bool preempt_running);
  absl::StatusOr<TransitionReport> SetAdapters(std::vector<HeldAdapter> adapters);
  absl::Status Revive(bool asleep);
  absl::Status Roll(absl::Duration grace);
  absl::Status AbortCall();

  // Of the same life as the engine. With replicas every one of them pins the same.
  virtual PinnedPrefixes& pinned_prefixes() = 0;

  // Refuses new requests, finishes or (after `grace`) aborts open requests, then stops the loop.
  virtual void DrainAndStop(absl::Duration grace) = 0;

  virtual int32_t max_model_len() const = 0;
  virtual int32_t vocab_size() const = 0;
};

}  // namespace somnus
