#pragma once
// The Engine over one executor: the callers' side of a step loop. step_loop.h describes the loop's way with
// requests, commands and failures.
//
// Ownership: owns the loop, the loop's thread and everything that the loop shares with callers; the executor
// and the observer are borrowed and must live until DrainAndStop (which the destructor calls without grace)
// has returned. Thread safety: as engine.h says. A lifecycle request becomes a command
// (lifecycle_command.h), which the loop carries out while the caller is blocked.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/engine/callers_mail.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/engine_board.h"
#include "coordinator/engine/engine_options.h"
#include "coordinator/engine/loop_mail.h"
#include "coordinator/engine/prefix_book.h"
#include "coordinator/engine/step_loop.h"
#include "coordinator/engine/view_board.h"
#include "coordinator/executor/executor.h"

namespace somnus {

class EngineLoop : public Engine {
 public:
  // The workers must have loaded the model and allocated the cache: the engine is awake at once, or asleep
  // where options.residency says so. `observer` may be null.
  EngineLoop(EngineOptions options, Executor* executor, EngineObserver* observer);
  ~EngineLoop() override;

  absl::Status SubmitAll(std::vector<EngineRequest> requests) override;
  void Abort(const std::string& request_id) override { mail_.Abort(request_id); }
  EngineState state() const override { return board_.state(); }
  absl::Status Health() const override;
  void OnStateChange(std::function<void()> callback) override { board_.OnStateChange(std::move(callback)); }
  EngineStats Stats() const override;
  EngineViews View() override;
  LifecycleResult Run(const LifecycleRequest& request) override;
  // Undoes a sleep: as WakeUpRequest with these tags, which are not empty, but a pause goes on.
  absl::StatusOr<TransitionReport> UndoSleep(const std::vector<std::string>& tags);
  // The memory that a wake-up of `tags` (empty: all) would take, by rank. An error: a rank does not answer
  // now. Blocks; thread safe.
  absl::StatusOr<std::vector<RankNeed>> PlanWakeUp(const std::vector<std::string>& tags);
  PinnedPrefixes& pinned_prefixes() override { return prefixes_; }
  void DrainAndStop(absl::Duration grace) override;
  int32_t max_model_len() const override { return options_.scheduler.max_model_len; }
  int32_t vocab_size() const override { return options_.vocab_size; }

  // Whether `requests` can ever be served under `options`: InvalidArgument names the field.
  static absl::Status CheckRequests(const EngineOptions& options, const std::vector<EngineRequest>& requests);
  // Takes a request that passed CheckRequests, also beyond the bounds of the queue, and with the progress
  // that the request has; its id must not be live. False, and the request is left alone, unless the engine is
  // awake and goes on. Thread safe.
  bool Offer(EngineRequest* request) { return mail_.Offer(request); }
  // The open requests of this engine. num_preempted and num_steps are as of the last step.
  struct Backlog {
    int64_t num_open = 0;
    int64_t num_preempted = 0;   // requests that wait again
    int64_t waiting_tokens = 0;  // of prompts that were never scheduled
    int64_t num_steps = 0;       // since the start
  };
  Backlog backlog() const;
  // The least time in which so many prompt tokens can be computed. Not set: nobody can tell. Thread safe.
  std::optional<absl::Duration> PrefillTime(int64_t num_tokens) const {
    return board_.PrefillTime(num_tokens);
  }
  // Ends all workers of the group and brings up new ones; the epoch that begins then is not counted as a
  // recovery. Open requests are handed over, or wait. Blocks the caller until the group is whole again.
  // FailedPrecondition: the engine is not awake, or its weights came from an update, which new workers cannot
  // have; any other error is the engine's end.
  absl::Status Restart();
  // For an engine whose group has failed for good: tries once more to bring the group up, awake, and returns
  // at once, in the state kRecovering; the state shows how the try has ended. `restart_workers`: workers that
  // are well are replaced, too. `weights`: of the engines beside which this engine serves. False, and nothing
  // happens, where the engine has not failed, ends, or has failed because its own books were wrong.
  bool Revive(bool restart_workers, const Weights& weights);
  using Engine::Revive;
  // Revive would do something.
  bool may_revive() const { return board_.may_revive() && !mail_.ends(); }
  // The weights, which are stale or not, as of the last lifecycle call that has ended. Thread safe.
  Weights weights() const { return board_.weights(); }
  // Requests are refused: weights that no wake-up brings did not come within stale_weights_timeout, and
  // nobody is bringing them. A change is reported as a change of the state. Thread safe.
  bool gave_up_stale_weights() const { return board_.gave_up_stale_weights(); }

 private:
  // The kinds of lifecycle requests, as commands for the loop.
  absl::StatusOr<TransitionReport> CarryOut(const SleepRequest& request);
  absl::StatusOr<TransitionReport> CarryOut(const WakeUpRequest& request);
  absl::StatusOr<TransitionReport> CarryOut(const WakeForArrivalsRequest& request);
  absl::Status CarryOut(const EndWaitingRequest& request);
  absl::Status CarryOut(const PrefetchRequest& request);
  absl::Status CarryOut(const PauseRequest& request);
  absl::Status CarryOut(const ResumeRequest& request);
  absl::StatusOr<WeightsChange> CarryOut(const ReloadWeightsRequest& request);
  absl::StatusOr<std::unique_ptr<WeightUpdate>> CarryOut(const UpdateWeightsRequest& request);
  absl::StatusOr<int32_t> CarryOut(const ResizeKvCacheRequest& request);
  absl::Status CarryOut(const ResetPrefixCacheRequest& request);
  absl::StatusOr<TransitionReport> CarryOut(const SetAdaptersRequest& request);
  absl::Status CarryOut(const ReviveRequest& request);
  absl::Status CarryOut(const RollRequest& request);
  absl::Status CarryOut(const AbortCallRequest& request);

  // Hands the command to the loop, for this thread's client, and waits for the result. Unavailable once the
  // loop has stopped.
  absl::StatusOr<TransitionReport> RunCommand(const std::shared_ptr<LifecycleCommand>& command);
  // Waits for the signal, and tells the loop when this thread's client leaves meanwhile.
  void AwaitCall(const StopSignal& done);
  // False, and the command is not run: Revive would do nothing.
  bool BeginRevival(std::shared_ptr<LifecycleCommand> command);

  const EngineOptions options_;
  Executor* const executor_;
  const std::shared_ptr<LoopMail> events_ = std::make_shared<LoopMail>();
  EngineBoard board_;
  CallersMail mail_;
  PrefixBook prefixes_;
  ViewBoard views_;
  StepLoop loop_;

  absl::Mutex join_mu_;
  std::thread thread_ ABSL_GUARDED_BY(join_mu_);
};

}  // namespace somnus
