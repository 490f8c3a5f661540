#pragma once
// An operator of a simulated engine: sleeps, wake-ups, pauses and changes of the weights at random.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/engine/engine.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/site.h"

namespace somnus::simulation {

class Operator {
 public:
  // `note` is called after every call, with the call's name and result.
  Operator(Site* site, Faults* faults, Engine* engine,
           std::function<void(const std::string&, const absl::Status&)> note, int model = 0)
      : site_(*site),
        world_(site->world),
        random_(site->world.random()),
        faults_(*faults),
        engine_(*engine),
        note_(std::move(note)),
        model_(model) {}

  // From now on the operator writes to the checkpoints' files now and then: wake-ups with the files as backup
  // fail until a sleep at level 2 gives the backup up.
  void TouchFiles() { touches_files_ = true; }
  // Up to a few rounds, with pauses of up to `span`.
  void Work(absl::Duration span);
  // Leaves the engine awake, with all replicas; brings weights where weights are stale.
  void MakeAwake();
  // Afterwards a checkpoint has the weights.
  void ReloadCheckpoint();
  int num_sleeps() const { return num_sleeps_; }
  int num_weights_changes() const { return num_weights_changes_; }
  // During a change of the weights the engine says "asleep", and ranks are awake.
  bool changes_weights() const { return changes_weights_; }
  bool is_calling() const { return is_calling_; }

 private:
  bool IsAwake() const;
  void ReviveFailed();
  void GiveWay();
  void SleepAndWake();
  void PauseAndResume();
  // Once more where the disk was full.
  void Sleep(int level, SleepMode mode, const std::vector<std::string>& tags);
  absl::Status WakeUp(const std::vector<std::string>& tags);
  absl::Status Reload();
  absl::Status Update();
  // The version of the next weights, which are `weights` from then on.
  int64_t NextVersion(char weights);
  void ChangeWeights(bool updates);
  void MapWeights();
  void Call(const std::string& what, const std::function<absl::Status()>& call);
  std::vector<std::string> SomeTags();
  SleepMode SomeMode() { return random_.Chance(0.3) ? SleepMode::kWait : SleepMode::kKeep; }
  char SomeWeights() { return static_cast<char>('a' + random_.Between(0, 25)); }

  Site& site_;
  World& world_;
  Random& random_;
  Faults& faults_;
  Engine& engine_;
  const std::function<void(const std::string&, const absl::Status&)> note_;
  const int model_;
  int num_sleeps_ = 0;
  int num_weights_changes_ = 0;
  bool changes_weights_ = false;
  bool needs_mapped_weights_ = false;  // a change was refused, because weights sleep
  bool is_calling_ = false;
  bool touches_files_ = false;
};

// Whether a wake-up failed because the checkpoint, as the backup, has changed.
bool HasLostItsBackup(const absl::Status& status);

}  // namespace somnus::simulation
