#include "coordinator/several_models/operator_calls.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/memory_tags.h"
#include "base/status_macros.h"
#include "coordinator/engine/caller.h"
#include "coordinator/several_models/host_memory.h"

namespace somnus {
namespace {

// Waits, with `mu` held, until the condition holds or the client of this thread's call has left.
template <typename Condition>
void AwaitForCaller(absl::Mutex* mu, const Condition& condition) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (CurrentCaller() == nullptr) return mu->Await(absl::Condition(&condition));
  while (!condition() && CheckCaller().ok()) mu->AwaitWithTimeout(absl::Condition(&condition), kCallerLook);
}

bool NamesWeights(const std::vector<std::string>& tags) {
  return tags.empty() || std::find(tags.begin(), tags.end(), kWeightsTag) != tags.end();
}

bool IsDroppingBackup(const ModelRecord& model) {
  const std::optional<ResidencyDecision>& decision = model.transition.decision;
  return decision.has_value() && decision->action == ResidencyAction::kDropBackup;
}

}  // namespace

absl::Status OperatorCalls::MakeBackupRoom(ModelRecord* model) {
  const OperatorDeadline deadline(&models_);
  std::set<int> told;
  while (!models_.stopped()) {
    std::vector<ModelView> views = models_.Views();
    for (const int other : told) views[other].level_is_asked = true;  // the model could not drop its backup
    const BackupRoom room = PlanBackupRoom(models_.options().residency, views, model->index);
    if (room.is_free) return absl::OkStatus();
    if (room.missing > 0 || deadline.has_passed()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "--host-memory-budget: at level 1 the weights of ", model->options.name, " take ", room.needed,
          " bytes of host memory, and ", room.missing,
          " are missing; other models' backups hold it, or are kept as was asked; level 2 takes none"));
    }
    for (const int other : room.drops) {
      told.insert(other);
      transitions_.Begin(
          {ResidencyAction::kDropBackup, ResidencyReason::kHostMemory, other, 2, model->index});
    }
    AwaitDrops(deadline);
  }
  return AboutToEndError();
}

void OperatorCalls::AwaitDrops(const OperatorDeadline& deadline) {
  const auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu) {
    const auto& all = models_.all();
    const bool drops =
        std::any_of(all.begin(), all.end(), [](const auto& one) { return IsDroppingBackup(*one); });
    return models_.stopped() || !drops || deadline.has_passed();
  };
  models_.mu.Await(absl::Condition(&over));
}

std::optional<int64_t> OperatorCalls::MarkSleep(ModelRecord* model, const SleepRequest& request,
                                                OperatorMarks::SleepUnderWay* sleep) {
  *sleep = model->operators.BeginSleep(sleep->backs_up);
  const std::vector<ModelView> views = models_.Views();
  std::optional<int64_t> kept;
  if (request.level == 1) {
    const int64_t most = MaxKeptBytes(models_.options().residency, views, model->index);
    if (most != kNoBudget) kept = std::min(most, views[model->index].kv_bytes);
  }
  model->operators.Promise(*sleep, kept);
  return kept;
}

absl::StatusOr<TransitionReport> OperatorCalls::Sleep(ModelRecord* model, const SleepRequest& request) {
  SleepRequest bounded = request;
  OperatorMarks::SleepUnderWay sleep;
  {
    absl::MutexLock lock(&models_.mu);
    model->operators.EndStage(model->engine->state());
    const bool has_weights = model->transition.wakes() ||
                             model->engine->Stats().residency.state(kWeightsTag) == TagState::kResident;
    sleep.backs_up = request.level == 1 && NamesWeights(request.tags) && has_weights;
    if (sleep.backs_up) RETURN_IF_ERROR(MakeBackupRoom(model));
    if (const auto kept = MarkSleep(model, request, &sleep)) bounded.max_kept_bytes = kept;
  }
  absl::StatusOr<TransitionReport> report = model->engine->Sleep(bounded);
  {
    absl::MutexLock lock(&models_.mu);
    model->operators.EndSleep(sleep, report.ok(), request.level, *model->engine);
    model->transition.ForgetFailedSleeps(models_.now());
    if (report.ok()) {
      model->transition.retries
          .Restart();  // a sleep at level 2 has given up the backup that could not be read
      model->transition.sleeps_for.clear();
      transitions_.NoteSleep(model, report);
    }
  }
  models_.Wake();
  return report;
}

absl::Status OperatorCalls::LateWakeError(const ModelRecord& model) {
  const std::vector<ModelView> views = models_.Views();
  const ModelView& view = views[model.index];
  const std::string wait = absl::FormatDuration(models_.options().operator_wait);
  const int64_t lacking = view.device_bytes - view.resident_bytes;
  if (lacking <= 0) {  // the model has its memory, and recovers or waits for another call
    return absl::UnavailableError(absl::StrCat(model.options.name, " is not awake within ", wait,
                                               ": its state is ", EngineStateName(model.engine->state())));
  }
  return absl::UnavailableError(absl::StrCat(
      "no room within ", wait, ": ", model.options.name, " needs ", lacking,
      " bytes of --device-memory-budget, and ", FreeDeviceBytes(models_.options().residency, views),
      " are free; other models are awake, and are pinned, held by an operator, or have requests"));
}

absl::Status OperatorCalls::AwaitTurn(const ModelRecord& model, const OperatorDeadline& deadline) {
  const auto is_next = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu) {
    return models_.stopped() || model.operators.wanted() == nullptr || deadline.has_passed();
  };
  AwaitForCaller(&models_.mu, is_next);
  if (models_.stopped()) return AboutToEndError();
  RETURN_IF_ERROR(CheckCaller());
  return model.operators.wanted() == nullptr ? absl::OkStatus() : LateWakeError(model);
}

bool OperatorCalls::AwaitWakeUp(const ModelRecord& model, const OperatorDeadline& deadline) {
  const auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu) {
    const bool resident = !model.transition.decision.has_value() && IsResident(model.engine->state());
    const bool has_no_room = deadline.has_passed() && !model.IsWakeCarriedOut();
    return models_.stopped() || resident || model.operators.wanted()->result.has_value() || has_no_room;
  };
  AwaitForCaller(&models_.mu, over);
  // A wake-up that is being carried out goes on without its client.
  if (!over() && !model.IsWakeCarriedOut()) return false;
  models_.mu.Await(absl::Condition(&over));
  return true;
}

absl::StatusOr<TransitionReport> OperatorCalls::TakeResult(
    ModelRecord* model, const OperatorDeadline& deadline) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const OperatorWake& wake = *model->operators.wanted();
  if (wake.result.has_value()) return *wake.result;
  if (models_.stopped()) return AboutToEndError();
  if (deadline.has_passed() && !IsResident(model->engine->state())) return LateWakeError(*model);
  // The model was awake already. The engine's WakeUp ends a pause, and reports that all is resident; the
  // model's marks hold its memory meanwhile.
  const WakeUpCall call = wake.call;
  models_.mu.Unlock();
  absl::StatusOr<TransitionReport> report = model->engine->WakeUp(call.tags, call.load_weights);
  models_.mu.Lock();
  return report;
}

absl::StatusOr<TransitionReport> OperatorCalls::WakeUp(ModelRecord* model, const WakeUpCall& call) {
  absl::MutexLock lock(&models_.mu);
  const OperatorDeadline deadline(&models_);
  RETURN_IF_ERROR(AwaitTurn(*model, deadline));
  model->operators.Want(call);
  model->transition.retries.Restart();
  models_.Wake();
  absl::StatusOr<TransitionReport> report = absl::CancelledError(kAbandoned);
  if (AwaitWakeUp(*model, deadline)) report = TakeResult(model, deadline);
  model->operators.EndWake(*model->engine);
  model->transition.ForgetFailedSleeps(models_.now());
  models_.Wake();
  return report;
}

}  // namespace somnus
