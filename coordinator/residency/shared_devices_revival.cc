// SharedDevices' part for engines that have failed: new workers take the places of the lost workers. The new
// workers begin asleep, so that no model has to make room, and a request wakes the model as usual.

#include "base/log.h"
#include "coordinator/residency/declined.h"
#include "coordinator/residency/shared_devices.h"

namespace somnus {

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
