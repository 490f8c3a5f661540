#include "tests/simulation/models_cluster.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/threads.h"
#include "tests/simulation/simulated_model.h"
#include "tests/simulation/simulated_worker.h"

namespace somnus::simulation {
namespace {

constexpr absl::Duration kLimit = absl::Minutes(20);  // of virtual time; far more than any run needs
constexpr absl::Duration kGrace = absl::Seconds(10);
// Idle models fall asleep meanwhile, after the longest step that Faults makes (30 s).
constexpr absl::Duration kUntilQuiet = absl::Seconds(40);

class ModelsCluster {
 public:
  ModelsCluster(uint64_t seed, bool verbose)
      : site_(seed, RunWorker),
        plan_(DrawModelsPlan(&site_)),
        faults_(&site_, MostRanks()),
        errors_of_faults_(&site_, &faults_),
        fleet_(&site_),
        invariants_(&site_, plan_.devices.residency) {
    world_.SetVerbose(verbose);
    if (flags_.engine.wake_self_check) faults_.DamageBackups();
    if (site_.spills) faults_.BreakDisk();
    site_.on_device_memory = [this] { invariants_.CheckDeviceMemory(); };
  }

  Outcome Run() {
    const uint64_t main = world_.Spawn(world_.NewProcess("supervisor"), [this] { Supervise(); });
    if (world_.Run(main, kLimit)) fleet_.CheckNobodyIsLeft();
    outcome_.violation = world_.violation();
    outcome_.trace = world_.trace();
    outcome_.counts["faults"] = faults_.num_struck();
    return outcome_;
  }

 private:
  int MostRanks() const {
    int32_t most = 0;
    for (const ModelPlan& model : plan_.models) most = std::max(most, model.engine.flags.world_size);
    return most;
  }

  void Supervise() {
    const int coordinator = world_.NewProcess("coordinator");
    site_.network.Watch(coordinator);
    world_.Join(world_.Spawn(coordinator, [this] {
      if (const absl::Status status = ServeAll(); !status.ok())
        world_.Violate(absl::StrCat("Start: ", status.message()));
    }));
    fleet_.AwaitEnd(flags_.local_workers);
  }

  // As the server does.
  absl::Status ServeAll() {
    SharedDevices devices(plan_.devices);
    MakeModels(&devices);
    for (const auto& model : models_) RETURN_IF_ERROR(model->Load());
    RETURN_IF_ERROR(devices.Start());
    Serve();
    CheckQuiet();
    fleet_.EndRestarts();
    RunTogether(models_.size(), [this](size_t i) { models_[i]->Drain(kGrace); });
    devices.Stop();
    RunTogether(models_.size(), [this](size_t i) { models_[i]->EndWorkers(); });
    for (const auto& model : models_) model->Count(&outcome_.counts);
    models_.clear();  // before SharedDevices, which the engines use
    return absl::OkStatus();
  }

  void MakeModels(SharedDevices* devices) {
    SharedParts parts = {.site = &site_,
                         .faults = &faults_,
                         .errors_of_faults = &errors_of_faults_,
                         .fleet = &fleet_,
                         .invariants = &invariants_,
                         .devices = devices,
                         .all_ended = [this] { return AllEnded(); },
                         .others_stay = [this](int model) { return OthersStay(model); }};
    for (const ModelPlan& model : plan_.models) {
      const int number = static_cast<int>(models_.size());
      models_.push_back(std::make_unique<SimulatedModel>(parts, model, plan_.devices, number));
    }
  }

  void Serve() {
    const absl::Duration span = random_.Between(absl::Milliseconds(200), absl::Seconds(4));
    faults_.Plan(span);
    std::vector<uint64_t> threads;
    for (const auto& model : models_) {
      for (const uint64_t thread : model->BeginServing(span)) threads.push_back(thread);
    }
    for (const uint64_t thread : threads) world_.Join(thread);
    faults_.End();
    fleet_.KillStopped();
  }

  bool AllEnded() const {
    return std::all_of(models_.begin(), models_.end(), [](const auto& model) { return model->HaveEnded(); });
  }

  bool OthersStay(int model) const {
    for (int other = 0; other < static_cast<int>(models_.size()); ++other)
      if (other != model && models_[other]->may_stay()) return true;
    return false;
  }

  void CheckQuiet() {
    world_.Sleep(kUntilQuiet);
    int64_t num_recoveries = 0;
    for (const auto& model : models_) {
      model->CheckQuiet();
      num_recoveries += model->num_recoveries();
    }
    outcome_.counts["recoveries"] = num_recoveries;
    if (num_recoveries > faults_.num_struck())
      world_.Violate(absl::StrCat(num_recoveries, " recoveries after ", faults_.num_struck(), " faults"));
  }

  Site site_;
  World& world_ = site_.world;
  Random& random_ = site_.world.random();
  const ModelsPlan plan_;
  const Flags& flags_ = plan_.models[0].engine.flags;  // options that are the same for all models
  Faults faults_;
  ErrorsOfFaults errors_of_faults_;
  Fleet fleet_;
  ModelsInvariants invariants_;
  Outcome outcome_;
  std::vector<std::unique_ptr<SimulatedModel>> models_;
};

}  // namespace

Outcome RunModels(uint64_t seed, bool verbose) {
  auto cluster = std::make_unique<ModelsCluster>(seed, verbose);
  const Outcome outcome = cluster->Run();
  // Not destroyed after a violation: threads may be in the middle of anything.
  if (!outcome.violation.empty()) (void)cluster.release();
  return outcome;
}

}  // namespace somnus::simulation
