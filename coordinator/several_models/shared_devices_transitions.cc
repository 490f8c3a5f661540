// SharedDevices' part for carrying out a decision: each has a thread while it lasts.

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/threads.h"
#include "coordinator/residency/declined.h"
#include "coordinator/several_models/shared_devices.h"

namespace somnus {
namespace {

// What a decision lets a sleep keep, as its request says it.
std::optional<int64_t> MaxKept(const ResidencyDecision& decision) {
  if (decision.max_kept_bytes == kNoBudget) return std::nullopt;
  return decision.max_kept_bytes;
}

bool PutsToSleep(ResidencyAction action) {
  return action == ResidencyAction::kSleepIfIdle || action == ResidencyAction::kDrain ||
         action == ResidencyAction::kPreempt || action == ResidencyAction::kRelease;
}

}  // namespace

void SharedDevices::Begin(const ResidencyDecision& decision) {
  Model* const model = models_[decision.model].get();
  const std::string text = absl::StrCat(
      ResidencyActionName(decision.action), " (", ResidencyReasonName(decision.reason),
      decision.for_model == decision.model ? "" : ", for " + models_[decision.for_model]->options.name, ")");
  LogInfo("{}: {}", model->options.name, text);
  if (PutsToSleep(decision.action)) model->sleeps_for = "residency: " + text;
  if (model->options.on_decision) model->options.on_decision(decision);
  if (decision.action == ResidencyAction::kStay) {
    model->stay_told = true;
    return;
  }
  if (decision.action == ResidencyAction::kPrefetch) {
    model->prefetched = true;
    (void)Carry([this, model] { Prefetch(model); });
    return;
  }
  model->decision.reset();
  if (decision.action == ResidencyAction::kWake) {
    const OperatorWake* const wake = WakeOf(*model);
    model->carried = wake == nullptr ? std::nullopt : std::optional(*wake);
  }
  model->decision = decision;
  const int64_t id = ++model->decision_id;
  if (Carry([this, model, decision, id] { CarryOut(model, decision, id); })) return;
  // The decision was not tried, and is taken again after a pause.
  model->decision.reset();
  model->retries->NoteDeclined(options_.now());
  model->awake_since = options_.now() + options_.retry.first_pause;
}

bool SharedDevices::Carry(std::function<void()> work) {
  auto carrier = std::make_unique<Carrier>();
  absl::StatusOr<std::thread> thread = StartThread([this, carrier = carrier.get(), work = std::move(work)] {
    work();
    {
      absl::MutexLock lock(&mu_);
      carrier->ended = true;
    }
    mail_.Wake();
  });
  if (!thread.ok()) {
    LogWarning("{}", std::string(thread.status().message()));
    return false;
  }
  carrier->thread = *std::move(thread);
  carriers_.push_back(std::move(carrier));
  return true;
}

void SharedDevices::JoinEnded() {
  std::erase_if(carriers_, [](const std::unique_ptr<Carrier>& carrier) {
    if (carrier->ended) carrier->thread.join();
    return carrier->ended;
  });
}

absl::StatusOr<TransitionReport> SharedDevices::Call(Model* model, const ResidencyDecision& decision) {
  SleepRequest request;
  request.level = decision.level;
  request.max_kept_bytes = MaxKept(decision);
  request.spares_only_copy = true;  // of an update that has come since the decision
  switch (decision.action) {
    case ResidencyAction::kWake: {
      std::optional<OperatorWake> wake;
      {
        absl::MutexLock lock(&mu_);
        wake = model->carried;
      }
      if (!wake.has_value()) return model->engine->WakeForArrivals();
      return model->engine->WakeUp(wake->tags, wake->load_weights);
    }
    case ResidencyAction::kSleepIfIdle:
      request.only_if_idle = true;
      return model->engine->Sleep(request);
    case ResidencyAction::kDrain:
      request.mode = SleepMode::kWait;
      return model->engine->Sleep(request);
    case ResidencyAction::kPreempt:
    case ResidencyAction::kDropBackup:
    case ResidencyAction::kRelease:
      return model->engine->Sleep(request);
    case ResidencyAction::kPrefetch:
    case ResidencyAction::kStay:
      break;  // which are no transitions
  }
  return absl::InternalError("no such action");
}

void SharedDevices::CarryOut(Model* model, const ResidencyDecision& decision, int64_t id) {
  const MonotonicTime begin = options_.now();
  const absl::StatusOr<TransitionReport> report = Call(model, decision);
  absl::Status given_up;
  {
    absl::MutexLock lock(&mu_);
    const absl::Duration time = options_.now() - begin;
    if (decision.action == ResidencyAction::kWake) {
      given_up = NoteWakeUp(model, report, time);
    } else {
      // A drain's time is that of requests, and a release is of a part.
      const bool measured =
          decision.action != ResidencyAction::kDrain && decision.action != ResidencyAction::kRelease;
      NoteSleep(model, report, measured ? time : model->sleep_time);
    }
    // A later decision may have taken its place: a preemption that of a drain.
    if (model->decision_id == id) model->decision.reset();
  }
  if (!given_up.ok()) model->engine->EndWaiting(given_up);
}

// A hint: whatever becomes of it, the model can be woken.
void SharedDevices::Prefetch(Model* model) {
  const absl::Status status = model->engine->Prefetch();
  if (!status.ok() && !IsDeclined(status))
    LogWarning("{}: its weights are not prefetched: {}", model->options.name, std::string(status.message()));
}

absl::Status SharedDevices::NoteWakeUp(Model* model, const absl::StatusOr<TransitionReport>& report,
                                       absl::Duration time) {
  const bool in_part = model->carried.has_value() && !model->carried->tags.empty();
  const bool is_wanted = model->carried.has_value() && model->wanted.has_value();
  if (is_wanted && model->carried->id == model->wanted->id) {
    model->wanted->result = report;
    // Before anything is decided: requests do not wake the rest.
    if (model->wanted->stages) NoteStage(model, model->wanted->was_held);
  }
  if (report.ok()) {
    if (report->changed() && !in_part) model->wake_up_time = time;
    model->awake_since = options_.now();
    model->retries->NoteWoken();
    model->stay_told = false;
    if (model->options.on_switch && !in_part && model->waiting_since < model->awake_since) {
      const absl::Duration waited = model->awake_since - model->waiting_since;
      const absl::Duration wake_up = std::min(time, waited);
      model->options.on_switch({.room = waited - wake_up, .wake_up = wake_up});
    }
    return absl::OkStatus();
  }
  if (IsDeclined(report.status())) {
    model->retries->NoteDeclined(options_.now());
    return absl::OkStatus();
  }
  model->retries->NoteFailed(options_.now(), report.status());
  const bool gave_up = model->retries->gave_up();
  LogWarning("{}: could not be woken{}: {}", model->options.name, gave_up ? ", and requests are refused" : "",
             std::string(report.status().message()));
  return gave_up ? model->retries->error() : absl::OkStatus();
}

void SharedDevices::NoteSleep(Model* model, const absl::StatusOr<TransitionReport>& report,
                              absl::Duration time) {
  if (report.ok()) {
    model->sleep_time = time;
    model->prefetched = false;
    return;
  }
  // A request has come meanwhile, or another call has ended the wait: it stays as if it had just woken.
  const bool aborted = absl::IsAborted(report.status());
  model->awake_since = options_.now() + (aborted ? absl::ZeroDuration() : options_.retry.first_pause);
  if (aborted || IsDeclined(report.status())) return;
  LogWarning("{}: could not go to sleep: {}", model->options.name, std::string(report.status().message()));
}

// ---- Engines that have failed: new workers take the places of those that ended. They begin asleep, so that
// no other model has to make room, and a request wakes the model as ever.

void SharedDevices::NoteRevival(Model* model, EngineState state) {
  const MonotonicTime now = options_.now();
  if (IsResident(state)) model->revival.NoteServing(now);
  if (state != EngineState::kFailed || model->revives) return;
  if (model->revival.due() < absl::InfiniteDuration()) return;
  const absl::Duration pause = model->revival.NoteFailed(now);
  if (pause < absl::InfiniteDuration())
    LogInfo("{}: has failed, and is tried again in {}", model->options.name, absl::FormatDuration(pause));
}

MonotonicTime SharedDevices::ReviveDue(MonotonicTime now) {
  MonotonicTime next = absl::InfiniteDuration();
  for (const std::unique_ptr<Model>& model : models_) {
    NoteRevival(model.get(), model->engine->state());
    if (model->revives || model->revival.due() > now) {
      if (!model->revives) next = std::min(next, model->revival.due());
      continue;
    }
    model->revival.NoteTry();
    Carry([this, one = model.get()] {
      const absl::Status status = Revive(one);
      if (!status.ok() && !IsDeclined(status))
        LogWarning("{}: could not be brought up: {}", one->options.name, std::string(status.message()));
    });
  }
  return next;
}

absl::Status SharedDevices::Revive(Model* model) {
  {
    absl::MutexLock lock(&mu_);
    if (model->revives) return DeclinedError("the model is being brought up");
    model->revives = true;
  }
  const absl::Status status = model->engine->Revive(/*asleep=*/true);
  {
    absl::MutexLock lock(&mu_);
    model->revives = false;
    if (status.ok()) model->revival.NoteTry();  // no further try is due
    if (status.ok()) model->retries->Restart();
  }
  mail_.Wake();
  return status;
}

}  // namespace somnus
