#include "coordinator/several_models/revivals.h"

#include <algorithm>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/log.h"
#include "coordinator/residency/declined.h"

namespace somnus {

void Revivals::NoteState(ModelRecord* model, MonotonicTime now) {
  const EngineState state = model->engine->state();
  if (IsResident(state)) model->revival.NoteServing(now);
  if (state != EngineState::kFailed || model->revives) return;
  if (model->revival.due() < absl::InfiniteDuration()) return;
  const absl::Duration pause = model->revival.NoteFailed(now);
  if (pause < absl::InfiniteDuration())
    LogInfo("{}: has failed, and is tried again in {}", model->options.name, absl::FormatDuration(pause));
}

MonotonicTime Revivals::BeginDue(MonotonicTime now) {
  MonotonicTime next = absl::InfiniteDuration();
  for (const std::unique_ptr<ModelRecord>& model : models_.all()) {
    NoteState(model.get(), models_.now());
    if (model->revives) continue;
    if (model->revival.due() > now) {
      next = std::min(next, model->revival.due());
      continue;
    }
    model->revival.NoteTry();
    (void)threads_.Carry([this, one = model.get()] {
      const absl::Status status = Revive(one);
      if (!status.ok() && !IsDeclined(status))
        LogWarning("{}: could not be brought up: {}", one->options.name, std::string(status.message()));
    });
  }
  return next;
}

absl::Status Revivals::Revive(ModelRecord* model) {
  {
    absl::MutexLock lock(&models_.mu);
    if (model->revives) return DeclinedError("the model is being brought up");
    model->revives = true;
  }
  const absl::Status status = model->engine->Revive(/*asleep=*/true);
  {
    absl::MutexLock lock(&models_.mu);
    model->revives = false;
    if (status.ok()) model->revival.NoteTry();  // no further try is due
    if (status.ok()) model->transition.retries.Restart();
  }
  models_.Wake();
  return status;
}

}  // namespace somnus
