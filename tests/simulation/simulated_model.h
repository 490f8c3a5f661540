#pragma once
// One of several models of a simulated cluster: a group of workers, an engine behind SharedDevices, an
// operator and clients, and the invariants of the model.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/engine_observer.h"
#include "coordinator/group/worker_group.h"
#include "coordinator/several_models/shared_devices.h"
#include "tests/simulation/clients.h"
#include "tests/simulation/errors_of_faults.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/fleet.h"
#include "tests/simulation/invariants.h"
#include "tests/simulation/models_invariants.h"
#include "tests/simulation/models_plan.h"
#include "tests/simulation/operator.h"
#include "tests/simulation/outcome.h"
#include "tests/simulation/site.h"

namespace somnus::simulation {

// The parts of the cluster that all models share. All are borrowed.
struct SharedParts {
  Site* site;
  Faults* faults;
  ErrorsOfFaults* errors_of_faults;
  Fleet* fleet;
  ModelsInvariants* invariants;
  SharedDevices* devices;
  std::function<bool()> all_ended;       // the requests of all models
  std::function<bool(int)> others_stay;  // SimulatedModel::may_stay of any other model
};

class SimulatedModel : public EngineObserver {
 public:
  SimulatedModel(const SharedParts& parts, const ModelPlan& plan, const SharedDevicesOptions& devices,
                 int number);

  // Starts the workers and makes the engine, as the server does for each model in turn.
  absl::Status Load();
  // Adds clients, and starts the threads of clients and of the operator, which act for about `span`.
  std::vector<uint64_t> BeginServing(absl::Duration span);
  bool HaveEnded() const;
  // Another model's wake-up may have waited in vain: within its wait an operator held this model's memory, or
  // no other copy of the weights exists.
  bool may_stay() const;
  // All requests have ended a while ago: nothing is held, and a model that sleeps when idle sleeps.
  void CheckQuiet();
  void Drain(absl::Duration grace);
  void EndWorkers() { group_.Stop(); }
  int64_t num_recoveries() const { return loop_->Stats().num_recoveries; }
  void Count(Counts* counts) const;

  void OnStep(const StepEvent&) override {}
  void OnRecovered(absl::Duration) override {}
  void OnRequestFinished(const EngineRequest&, const FinishedRequest&) override { ++num_finished_; }

 private:
  absl::Status LoadGroup();
  SharingModel CountDecisions();
  void LookAround();
  void Operate(absl::Duration span);
  void EndOperating();
  bool NeedsHelp() const;
  // Whether the model, as the only copy of updated weights, has no room in the host's memory to sleep.
  bool CannotGiveWay(const EngineStats& stats) const;
  void Help();
  void Note(const std::string& what, const absl::Status& status);
  bool MayFail(const std::string& what, const absl::Status& status) const;
  void CheckSleepsIfIdle(const EngineStats& stats);

  const SharedParts parts_;
  World& world_;
  const ModelPlan plan_;
  const SharedDevicesOptions options_;
  const int number_;
  WorkerGroup group_;
  KvPlan cache_;
  std::shared_ptr<Engine> engine_;  // behind SharedDevices; ends before the workers
  Engine* loop_ = nullptr;          // engine_'s own
  std::unique_ptr<Operator> operator_;
  std::unique_ptr<Invariants> invariants_;
  std::vector<std::shared_ptr<Client>> clients_;
  bool operates_ = false;
  MonotonicTime operated_until_ = -absl::InfiniteDuration();
  int64_t num_finished_ = 0;
  Counts counts_;
};

}  // namespace somnus::simulation
