#include "tests/simulation/operator.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/memory_tags.h"
#include "base/status_macros.h"
#include "coordinator/residency/weights.h"
#include "tests/worker/fake_parts.h"

namespace somnus::simulation {

bool HasLostItsBackup(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) && absl::StrContains(status.message(), "is the backup of");
}

void Operator::Work(absl::Duration span) {
  if (!IsAwake()) {  // as left by an earlier coordinator
    world_.Sleep(random_.Between(absl::ZeroDuration(), span));
    MakeAwake();
  }
  for (int64_t i = random_.Between(0, 3); i > 0; --i) {
    world_.Sleep(random_.Between(absl::ZeroDuration(), span));
    switch (random_.Between(0, 5)) {
      case 0:
        PauseAndResume();
        break;
      case 1:
        ChangeWeights(/*updates=*/false);
        break;
      case 2:
        ChangeWeights(/*updates=*/true);
        break;
      default:
        SleepAndWake();
    }
  }
  MakeAwake();
}

void Operator::SleepAndWake() {
  Sleep(static_cast<int>(random_.Between(1, 2)), SomeMode(), SomeTags());
  world_.Sleep(random_.Between(absl::ZeroDuration(), absl::Seconds(1)));
  if (touches_files_ && random_.Chance(0.4)) {
    ++site_.touches;
    world_.Log("the checkpoints' files are written to");
  }
  if (random_.Chance(0.3)) WakeUp({"weights"}).IgnoreError();
  if (random_.Chance(0.2)) Sleep(2, SleepMode::kKeep, SomeTags());
  if (random_.Chance(0.2)) engine_.ResetPrefixCache(random_.Chance(0.5)).IgnoreError();
  MakeAwake();
}

void Operator::PauseAndResume() {
  const PauseRequest pause = {.mode = SomeMode(), .clear_cache = random_.Chance(0.5)};
  Call("Pause", [&] { return engine_.Pause(pause); });
  world_.Sleep(random_.Between(absl::ZeroDuration(), absl::Seconds(1)));
  if (random_.Chance(0.3)) {
    Sleep(static_cast<int>(random_.Between(1, 2)), SomeMode(), SomeTags());
    if (random_.Chance(0.5)) return MakeAwake();  // which ends the pause
  }
  Call("Resume", [&] { return engine_.Resume(); });
  MakeAwake();
}

// Each replica is asked where there are several: the engine is awake as soon as one of the replicas is.
bool Operator::IsAwake() const {
  if (engine_.state() != EngineState::kAwake) return false;
  if (site_.num_replicas == 1) return true;
  const std::vector<ReplicaStats> replicas = engine_.Stats().replicas;
  return std::all_of(replicas.begin(), replicas.end(),
                     [](const ReplicaStats& replica) { return replica.state == EngineState::kAwake; });
}

void Operator::ReviveFailed() {
  const std::vector<ReplicaStats> replicas = engine_.Stats().replicas;
  const bool has_failed = std::any_of(replicas.begin(), replicas.end(), [](const ReplicaStats& replica) {
    return replica.state == EngineState::kFailed;
  });
  if (has_failed) Call("Revive", [&] { return engine_.Revive(/*asleep=*/false); });
}

// A memory that fails does so once in each process that was struck, and so does a backup that is damaged. Of
// a checkpoint that has changed level 2 gives the backup up.
void Operator::MakeAwake() {
  for (int i = 0; i <= 2 * Faults::kMaxFaults && !IsAwake(); ++i) {
    if (std::exchange(needs_mapped_weights_, false)) MapWeights();
    if (engine_.Stats().residency.weights_stale()) {
      ChangeWeights(/*updates=*/false);
      continue;
    }
    const absl::Status status = WakeUp({});
    if (HasLostItsBackup(status)) {
      Sleep(2, SleepMode::kKeep, {});
    } else if (site_.num_models > 1) {
      if (!status.ok() && engine_.Stats().needs_weights) ChangeWeights(/*updates=*/false);
      if (absl::IsUnavailable(status)) GiveWay();
    } else if (site_.num_replicas > 1) {
      // A replica may lack weights while another replica serves.
      if (!status.ok() && engine_.Stats().needs_weights) ChangeWeights(/*updates=*/false);
      ReviveFailed();
    }
  }
}

// As the error says that refuses a change of weights that sleep, of one replica or of all.
void Operator::MapWeights() {
  Call("WakeUp of weights", [&] { return engine_.WakeUp({kWeightsTag}, /*load_weights=*/false).status(); });
}

// There is no room: two operators may each hold a part of the memory that the other operator's model lacks.
void Operator::GiveWay() {
  Sleep(2, SleepMode::kKeep, {});
  world_.Sleep(random_.Between(absl::ZeroDuration(), absl::Seconds(5)));
}

void Operator::ReloadCheckpoint() { ChangeWeights(/*updates=*/false); }

std::vector<std::string> Operator::SomeTags() {
  if (random_.Chance(0.7)) return {};
  return {kMemoryTags[static_cast<size_t>(random_.Between(0, kMemoryTags.size() - 1))]};
}

void Operator::Sleep(int level, SleepMode mode, const std::vector<std::string>& tags) {
  ++num_sleeps_;
  absl::Status status;
  const auto sleep = [&] {
    Call(absl::StrCat("Sleep at ", level, " of ", tags.empty() ? "all" : tags[0]), [&] {
      // The operator has the files of every update.
      return status = engine_.Sleep({.level = level, .tags = tags, .mode = mode, .force = true}).status();
    });
  };
  sleep();
  if (!absl::IsResourceExhausted(status)) return;
  world_.Sleep(site_.disk.filled_until() - world_.now());
  sleep();
}

// Weights that came from an update, and were discarded, are stale afterwards.
absl::Status Operator::WakeUp(const std::vector<std::string>& tags) {
  absl::Status status;
  Call(absl::StrCat("WakeUp of ", tags.empty() ? "all" : tags[0]),
       [&] { return status = engine_.WakeUp(tags).status(); });
  return status;
}

int64_t Operator::NextVersion(char weights) {
  WeightsByVersion& versions = site_.weights[model_];
  const int64_t version = versions.rbegin()->first + 1;
  versions[version] = weights;
  return version;
}

void Operator::ChangeWeights(bool updates) {
  ++num_weights_changes_;
  Call(updates ? "Update" : "Reload", [&] {
    changes_weights_ = true;
    const absl::Status status = updates ? Update() : Reload();
    changes_weights_ = false;
    needs_mapped_weights_ = absl::StrContains(status.message(), kWeightsSleep);
    return status;
  });
}

absl::Status Operator::Reload() {
  const char weights = SomeWeights();
  WeightsRequest request;
  request.path = absl::StrCat("checkpoint-", std::string(1, weights));
  request.version = NextVersion(weights);
  request.mode = SomeMode();
  return engine_.ReloadWeights(request).status();
}

absl::Status Operator::Update() {
  const char weights = SomeWeights();
  WeightsRequest request{.version = NextVersion(weights), .mode = SomeMode()};
  ASSIGN_OR_RETURN(const std::unique_ptr<WeightUpdate> update, engine_.BeginWeightUpdate(request));
  const bool gives_up = random_.Chance(0.15);
  for (v1::WeightChunk& chunk : AllTensors(static_cast<float>(weights))) {
    if (gives_up && random_.Chance(0.2)) return absl::OkStatus();
    RETURN_IF_ERROR(update->Send(std::move(chunk)));
  }
  return update->Finish().status();
}

void Operator::Call(const std::string& what, const std::function<absl::Status()>& call) {
  is_calling_ = true;
  const absl::Status status = call();
  is_calling_ = false;
  note_(what, status);
}

}  // namespace somnus::simulation
