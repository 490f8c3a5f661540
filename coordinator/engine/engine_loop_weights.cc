// EngineLoop's part for changes of the weights: reloads, and updates whose tensors a client sends.

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/random_hex.h"
#include "base/status_macros.h"
#include "coordinator/engine/caller.h"
#include "coordinator/engine/engine_loop.h"

namespace somnus {
namespace {

constexpr size_t kUpdateIdBytes = 8;
constexpr char kOnlyReplaced[] =
    "only somnus reload-weights (POST /reload_weights) or an update can bring them";

// There are always next ones. Nanoseconds since 1970 are versions, too.
constexpr int64_t kMaxVersion = std::numeric_limits<int64_t>::max() / 2;

absl::Status CheckVersion(int64_t version) {
  if (version >= 0 && version <= kMaxVersion) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("weights_version: must be from 1 to ", kMaxVersion));
}

}  // namespace

// The caller's end of an update. The command's callbacks share `call_`, since the command may outlive it.
class EngineLoop::Update : public WeightUpdate {
 public:
  struct Call {
    StopSignal begun;  // chunks may be sent, or the update has ended
    absl::Notification ended;
    absl::Status status;  // once it has ended
    const std::shared_ptr<WeightsChange> change = std::make_shared<WeightsChange>();
    const std::shared_ptr<std::vector<v1::UpdatePort>> ports =
        std::make_shared<std::vector<v1::UpdatePort>>();
  };

  Update(EngineLoop* loop, std::string id, std::shared_ptr<Call> call)
      : loop_(loop), id_(std::move(id)), call_(std::move(call)) {}
  ~Update() override { End({.update_id = id_}); }

  absl::Status Send(v1::WeightChunk chunk) override {
    const absl::Status sent = loop_->executor_->SendWeights(id_, std::move(chunk));
    // The engine knows best why it has ended.
    return sent.ok() || !call_->ended.HasBeenNotified() ? sent : call_->status;
  }
  absl::Status status() const override {
    return call_->ended.HasBeenNotified() ? call_->status : absl::OkStatus();
  }
  std::vector<v1::UpdatePort> ports() const override { return *call_->ports; }
  absl::StatusOr<WeightsChange> Finish(const std::optional<ReceivedWeights>& expected) override {
    End({.update_id = id_, .finishes = true, .expected = expected});
    RETURN_IF_ERROR(call_->status);
    return *call_->change;
  }

 private:
  void End(UpdateEnd end) {
    if (call_->ended.HasBeenNotified()) return;
    {
      absl::MutexLock lock(&loop_->mu_);
      loop_->update_ends_.push_back(std::move(end));
    }
    loop_->mail_->Wake();
    call_->ended.WaitForNotification();
  }

  EngineLoop* const loop_;
  const std::string id_;
  const std::shared_ptr<Call> call_;
};

absl::StatusOr<WeightsChange> EngineLoop::ReloadWeights(const WeightsRequest& request) {
  RETURN_IF_ERROR(CheckVersion(request.version));
  LifecycleCommand command;
  command.kind = LifecycleCommand::Kind::kReload;
  command.mode = request.mode;
  command.path = request.path;
  command.weights_version = request.version;
  const auto change = std::make_shared<WeightsChange>();
  command.change = change;
  RETURN_IF_ERROR(RunCommand(std::move(command)).status());
  return *change;
}

absl::StatusOr<std::unique_ptr<WeightUpdate>> EngineLoop::BeginWeightUpdate(const WeightsRequest& request) {
  RETURN_IF_ERROR(CheckVersion(request.version));
  const auto call = std::make_shared<Update::Call>();
  LifecycleCommand command;
  command.kind = LifecycleCommand::Kind::kUpdate;
  command.mode = request.mode;
  command.weights_version = request.version;
  command.update_id = RandomHex(kUpdateIdBytes);
  command.port_token = request.port_token;
  command.tensors = request.tensors;
  command.caller = CurrentCaller();
  command.change = call->change;
  command.ports = call->ports;
  command.begun = [call] { call->begun.Stop(); };
  command.reply = [call](const absl::StatusOr<TransitionReport>& result) {
    call->status = result.status();
    call->ended.Notify();
    call->begun.Stop();
  };
  const std::string id = command.update_id;
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return absl::UnavailableError("the engine has stopped");
    arrived_commands_.push_back(std::move(command));
  }
  mail_->Wake();
  AwaitCall(call->begun);
  if (call->ended.HasBeenNotified()) return call->status;
  return std::make_unique<Update>(this, id, call);
}

Weights EngineLoop::weights() const {
  absl::MutexLock lock(&mu_);
  return published_weights_;
}

bool EngineLoop::BeginWeightsChange() {
  const auto refuse = [this](const absl::Status& status) {
    EndCommand(status);
    return false;
  };
  if (absl::Status status = CheckLifecycle(); !status.ok()) return refuse(status);
  if (residency_.asleep().count(kWeightsTag) > 0)
    return refuse(absl::FailedPreconditionError("the weights sleep; wake them up first"));
  if (!SettleOpenRequests()) return false;
  if (command_->Abandoned()) {
    SwitchState(RestingState());  // it may have waited
    return refuse(absl::CancelledError(kAbandoned));
  }
  if (residency_.awake()) {
    SwitchState(EngineState::kFallingAsleep);
    Quiesce(CacheLoss::kWeights);
    if (!Computes()) return false;  // the command waits for the recovery, or the engine has failed
  }
  scheduler_.ForgetComputed(CacheLoss::kWeights);
  residency_.SetWeightsStale(true);
  weights_.overwritten = true;
  SwitchState(EngineState::kAsleep);
  SwitchState(EngineState::kWaking);
  return true;
}

void EngineLoop::StartReload() {
  if (!BeginWeightsChange()) return;
  const std::string path = command_->path.empty() ? weights_.path : command_->path;
  const int64_t version = command_->weights_version > 0 ? command_->weights_version : weights_.version + 1;
  command_->change->version = version;
  executor_->ReloadWeightsAsync(path, version, CallWeights());
}

void EngineLoop::StartUpdate() {
  if (!BeginWeightsChange()) return;
  executor_->BeginWeightUpdateAsync(command_->update_id, command_->port_token, command_->tensors,
                                    CallWeights());
}

Executor::WeightsDone EngineLoop::CallWeights() {
  call_ = LifecycleCall{.id = ++last_call_, .of_weights = true};
  return
      [mail = mail_, id = call_->id](const WeightsOutcome& outcome) { mail->PostWeightsResult(id, outcome); };
}

void EngineLoop::EndUpdates() {
  std::vector<UpdateEnd> ends;
  {
    absl::MutexLock lock(&mu_);
    ends.swap(update_ends_);
  }
  for (const UpdateEnd& end : ends) {
    if (!command_.has_value() || command_->update_id != end.update_id) continue;  // it has ended already
    if (!end.finishes) {
      const absl::Status error = absl::CancelledError("the update of the weights was given up");
      call_.reset();
      EndWeightsChange(error);
      continue;
    }
    const int64_t version = command_->weights_version > 0 ? command_->weights_version : weights_.version + 1;
    command_->change->version = version;
    executor_->FinishWeightUpdateAsync(version, end.expected, CallWeights());
  }
}

void EngineLoop::FinishWeights(const WeightsOutcome& outcome) {
  if (!outcome.status.ok()) {
    if (outcome.untouched) {
      residency_ = command_->before.residency;
      weights_ = command_->before.weights;
    }
    return EndWeightsChange(outcome.status);
  }
  WeightsChange* const change = command_->change.get();
  if (command_->kind == LifecycleCommand::Kind::kUpdate && change->version == 0) {
    PublishStats();
    *command_->ports = outcome.ports;
    return command_->begun();
  }
  weights_.version = change->version;
  weights_.update_id = command_->update_id;  // of a reload: none
  weights_.overwritten = false;
  if (command_->kind == LifecycleCommand::Kind::kReload) {
    if (!command_->path.empty()) weights_.path = command_->path;
    weights_.fingerprint = outcome.fingerprint;
  }
  residency_.SetWeightsStale(false);
  change->fingerprint = outcome.fingerprint;
  change->received = outcome.received;
  EndWeightsChange(absl::OkStatus());
}

void EngineLoop::NoteStaleWeights() {
  if (NeedsWeights()) stale_deadline_ = options_.monotonic_now() + options_.stale_weights_timeout;
}

MonotonicTime EngineLoop::GivesUpStaleWeightsAt() const {
  const bool changes = command_.has_value() && command_->ChangesWeights();
  return changes || recovering_ ? absl::InfiniteDuration() : stale_deadline_;
}

void EngineLoop::CheckStaleWeights() {
  if (!NeedsWeights()) stale_deadline_ = absl::InfiniteDuration();
  const bool gives_up = options_.monotonic_now() >= GivesUpStaleWeightsAt();
  if (gave_up_stale_weights_.exchange(gives_up) != gives_up) {
    if (gives_up) LogError("{}{}", options_.log_name, kStaleForTooLong);
    ReportStateChange();
  }
  if (!gives_up) return;
  if (options_.hand_over) return HandOver();
  for (const SequencePtr& sequence : scheduler_.AbortAll())
    End(sequence, FinishReason::kError, absl::UnavailableError(kStaleForTooLong));
}

void EngineLoop::EndWeightsChange(const absl::Status& status) {
  step_deadline_.Restart();
  NoteStaleWeights();
  if (status.ok()) NoteNewWeights();
  PublishStats();  // before the state: whoever looks at its change finds which weights there are
  SwitchState(RestingState(), status.ok() ? "" : absl::StrCat(command_->Name(), ": ", status.message()));
  WeightsEvent event;
  event.updates = command_->kind == LifecycleCommand::Kind::kUpdate;
  event.duration = options_.monotonic_now() - command_->began;
  event.version = weights_.version;
  event.source = weights_.source();
  if (status.ok()) {
    LogInfo("{}version {} of the weights, from {}", options_.log_name, weights_.version, weights_.source());
    if (observer_ != nullptr) observer_->OnWeightsChanged(event);
    return EndCommand(TransitionReport());
  }
  if (!residency_.weights_stale()) return EndCommand(status);
  LogWarning("{}the weights are stale: {}", options_.log_name, std::string(status.message()));
  // Something has changed, so a reload must not return the error of a refusal.
  const bool is_other = IsRefusal(status) && command_->kind == LifecycleCommand::Kind::kReload;
  EndCommand(absl::Status(
      is_other ? absl::StatusCode::kInternal : status.code(),
      absl::StrCat(status.message(), "; the weights are stale until a reload or an update succeeds")));
}

bool EngineLoop::LacksWeights() const {
  const TagState state = residency_.state(kWeightsTag);
  return state == TagState::kStale || state == TagState::kDiscarded;
}

absl::StatusOr<bool> EngineLoop::WillReadWeights(const std::vector<std::string>& tags) const {
  const bool named = std::find(tags.begin(), tags.end(), kWeightsTag) != tags.end();
  const TagState state = residency_.state(kWeightsTag);
  const bool reads = command_->load_weights.value_or(weights_.readable());
  if (!named || state == TagState::kBackedUp || (state == TagState::kDiscarded && !reads)) return false;
  if (weights_.readable()) return reads;
  const bool stay = state == TagState::kStale && command_->load_weights == false;
  if (stay) return false;
  return absl::FailedPreconditionError(
      absl::StrCat("the weights are ", TagStateName(state), ": ", kOnlyReplaced));
}

}  // namespace somnus
