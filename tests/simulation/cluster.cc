#include "tests/simulation/cluster.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/engine/auto_sleep_engine.h"
#include "coordinator/engine/engine_loop.h"
#include "coordinator/group/replica_groups.h"
#include "coordinator/replicas/replica_set.h"
#include "tests/simulation/clients.h"
#include "tests/simulation/cluster_plan.h"
#include "tests/simulation/coordinator_deaths.h"
#include "tests/simulation/errors_of_faults.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/fleet.h"
#include "tests/simulation/invariants.h"
#include "tests/simulation/operator.h"
#include "tests/simulation/pinner.h"
#include "tests/simulation/replica_invariants.h"
#include "tests/simulation/resizer.h"
#include "tests/simulation/roller.h"
#include "tests/simulation/simulated_worker.h"
#include "tests/simulation/site.h"
#include "worker/worker.h"

namespace somnus::simulation {
namespace {

constexpr absl::Duration kLimit = absl::Minutes(20);  // of virtual time; far more than any run needs
constexpr absl::Duration kGrace = absl::Seconds(10);
constexpr absl::Duration kSoon = absl::Milliseconds(20);
constexpr absl::Duration kLongestRestart = absl::Seconds(3);
constexpr absl::Duration kWholePatience = absl::Minutes(5);  // until all replicas serve again

class Cluster {
 public:
  Cluster(uint64_t seed, bool with_stages, bool verbose)
      : site_(seed, RunWorker),
        plan_(DrawPlan(&site_, seed, with_stages)),
        faults_(&site_, flags_.world_size),
        errors_of_faults_(&site_, &faults_),
        fleet_(&site_),
        deaths_(&site_, &faults_, plan_.num_coordinator_deaths) {
    world_.SetVerbose(verbose);
    // A coordinator that has come since does not know the logits from before the sleep.
    if (flags_.engine.wake_self_check && plan_.num_coordinator_deaths == 0) faults_.DamageBackups();
    if (site_.spills) faults_.BreakDisk();
  }

  Outcome Run() {
    site_.on_worker_end = [this](int pid) { CheckGivenUp(pid); };
    const uint64_t main = world_.Spawn(world_.NewProcess("supervisor"), [this] { Supervise(); });
    if (world_.Run(main, kLimit)) fleet_.CheckNobodyIsLeft();
    outcome_.violation = world_.violation();
    outcome_.trace = world_.trace();
    outcome_.counts["requests"] = static_cast<int64_t>(clients_.size());
    CountWork();
    outcome_.counts["faults"] = faults_.num_struck();
    outcome_.counts["clusters with replicas"] = has_replicas() ? 1 : 0;
    if (site_.has_stages) outcome_.counts["steps beside another stage's"] = site_.steps.num_beside();
    outcome_.counts["writes to the disk"] = site_.disk.num_writes();
    outcome_.counts["errors of the disk"] = site_.disk.num_full() + site_.disk.num_damaged();
    return outcome_;
  }

 private:
  bool sleeps_by_itself() const {
    return flags_.auto_sleep.arrivals == SleepArrivals::kWake ||
           flags_.auto_sleep.idle_sleep > absl::ZeroDuration();
  }

  bool has_replicas() const { return flags_.data_parallel_size > 1; }

  std::shared_ptr<Engine> MakeEngine(const std::vector<ReplicaOptions>& replicas) {
    const auto make = [&](EngineObserver* observer) { return MakeReplicas(replicas, observer); };
    EngineObserver* const observer = replica_invariants_.get();
    if (flags_.auto_sleep.arrivals == SleepArrivals::kQueue && !sleeps_by_itself()) return make(observer);
    AutoSleepOptions automatic = flags_.auto_sleep;
    automatic.idle_level = plan_.idle_level;
    return std::make_shared<AutoSleepEngine>(automatic, observer, make);
  }

  std::shared_ptr<Engine> MakeReplicas(const std::vector<ReplicaOptions>& replicas,
                                       EngineObserver* observer) {
    if (!has_replicas())
      return std::make_shared<EngineLoop>(replicas[0].engine, replicas[0].executor, observer);
    ReplicaRetry retry;
    if (flags_.replica_retry_pause > absl::ZeroDuration()) retry.first_pause = flags_.replica_retry_pause;
    retry.restart_workers = flags_.local_workers;
    return std::make_shared<ReplicaSet>(replicas, observer, retry);
  }

  // As systemd and Kubernetes do: a coordinator that has ended is started again.
  void Supervise() {
    while (!served_ && world_.violation().empty()) {
      coordinator_ = world_.NewProcess("coordinator");
      site_.network.Watch(coordinator_);
      world_.OnEnd(coordinator_, [this] { BuryCoordinator(); });
      world_.Spawn(coordinator_, [this] { Main(); });
      while (!served_ && world_.alive(coordinator_)) world_.Block(this);
      if (!served_) world_.Sleep(random_.Between(kSoon, kLongestRestart));
    }
    fleet_.AwaitEnd(flags_.local_workers);
  }

  // The coordinator's main thread.
  void Main() {
    if (absl::Status status = ServeAll(); !status.ok()) {
      // A coordinator ends by an error at the start. No worker outlives that end.
      if (++num_failed_starts_ > faults_.num_struck()) Fail("Start", status);
      return world_.Kill(coordinator_, absl::StrCat("has failed: ", status.message()));
    }
    served_ = true;
    world_.Wake(this);
  }

  // All of one coordinator's life. An error: the coordinator could not begin.
  absl::Status ServeAll() {
    ReplicaGroups groups(flags_);
    const absl::StatusOr<std::vector<KvPlan>> caches = Load(&groups);
    if (!caches.ok()) {
      for (auto& [pid, worker] : site_.workers) worker.may_end = true;
      return caches.status();
    }
    std::vector<ReplicaOptions> replicas;
    executors_.clear();
    for (size_t i = 0; i < caches->size(); ++i) {
      EngineOptions options = MakeEngineOptions(plan_, (*caches)[i], &site_);
      options.residency = groups.residency(i);
      options.num_mapped_blocks = groups.num_mapped_blocks(i);
      options.weights = groups.weights(i);
      executors_.push_back(groups.executor(i));
      replicas.push_back({std::move(options), groups.executor(i)});
    }
    if (has_replicas()) {
      replica_invariants_ = std::make_unique<ReplicaInvariants>(
          &site_, &faults_, [this] { return operator_ != nullptr && operator_->changes_weights(); });
    }
    const std::shared_ptr<Engine> engine = MakeEngine(replicas);
    MakeOthers(engine.get());
    engine->OnStateChange([this] { world_.LookAround([this] { LookAround(); }); });
    CheckAdopted();
    Serve();
    CheckQuiet();
    fleet_.EndRestarts();
    deaths_.End();
    engine->DrainAndStop(kGrace);
    engine->OnStateChange(nullptr);
    groups.Stop();
    return absl::OkStatus();
  }

  // The threads that work with the engine, or look at the engine.
  void MakeOthers(Engine* engine) {
    engine_ = engine;
    const auto note = [this](const std::string& what, const absl::Status& status) { Note(what, status); };
    operator_ = std::make_unique<Operator>(&site_, &faults_, engine_, note);
    // Of an engine that wakes by itself a wake-up may be under way at any time.
    if (!sleeps_by_itself()) operator_->TouchFiles();
    resizer_ = std::make_unique<Resizer>(&site_, engine_, note);
    pinner_ = std::make_unique<Pinner>(&site_, engine_);
    invariants_ = std::make_unique<Invariants>(&site_, &flags_, &faults_, engine_, executors_,
                                               [this] { return operator_->changes_weights(); });
    roller_ = std::make_unique<Roller>(&site_, engine_, note);
    if (has_replicas()) replica_invariants_->SetEngine(engine_);
  }

  absl::StatusOr<std::vector<KvPlan>> Load(ReplicaGroups* groups) {
    ModelConfig config;
    config.vocab_size = site_.model.vocab_size;
    config.stored_type = StorageType::kF32;
    config.layer_attention = {{.window = site_.model.window}};
    RETURN_IF_ERROR(groups->Start(config, flags_.max_model_len, FilesOf(flags_.model)));
    if (!flags_.local_workers && !std::exchange(has_remote_workers_, true)) {
      for (int replica = 0; replica < flags_.data_parallel_size; ++replica)
        fleet_.StartRemote(OfReplica(flags_, replica), replica);
    }
    return groups->Load();
  }

  // The coordinator has ended, and no thread of the process runs any more.
  void BuryCoordinator() {
    world_.Wake(this);
    if (served_) return;
    ++outcome_.counts["restarts of the coordinator"];
    const bool changes_weights = operator_ != nullptr && operator_->changes_weights();
    found_asleep_ = engine_ != nullptr && engine_->state() == EngineState::kAsleep && !changes_weights;
    for (auto& [pid, worker] : site_.workers) {
      if (!world_.alive(pid) || worker.worker == nullptr) continue;
      // A coordinator that comes has use for version 1 alone.
      const v1::WorkerSnapshot held = worker.worker->Snapshot();
      worker.may_end |= changes_weights || held.weights_version() != 1 || held.weights_stale();
      // Nor for a worker that was loaded asleep and has no KV cache yet.
      worker.may_end |= held.num_blocks() == 0 && held.sleep_level() > 0;
      found_asleep_ &= !worker.may_end && held.state() == "asleep";
    }
    site_.network.ForgetGivenUp();
    CountWork();
    replica_invariants_.reset();
    for (const std::shared_ptr<Client>& client : clients_) client->ForgetMoves();
    engine_ = nullptr;
    executors_.clear();
  }

  // A sleeping engine sleeps on, unless a newcomer was among the ranks.
  void CheckAdopted() {
    if (!std::exchange(found_asleep_, false)) return;
    for (const auto& [pid, worker] : site_.workers)
      if (worker.may_end) return;
    ++outcome_.counts["groups adopted asleep"];
    if (engine_->state() != EngineState::kAsleep)
      world_.Violate(absl::StrCat("the engine slept, and after the coordinator's restart it is ",
                                  EngineStateName(engine_->state())));
  }

  // Adds up the work of the operator and of other threads in one life.
  void CountWork() {
    if (operator_ == nullptr) return;
    outcome_.counts["sleeps"] += operator_->num_sleeps();
    outcome_.counts["changes of weights"] += operator_->num_weights_changes();
    outcome_.counts["resizes"] += resizer_->num_resizes();
    outcome_.counts["pins"] += pinner_->num_pins();
    outcome_.counts["rolls"] += roller_->num_rolls();
    operator_.reset();
    resizer_.reset();
    pinner_.reset();
    invariants_.reset();
    roller_.reset();
  }

  // A survivor keeps the weights.
  void CheckGivenUp(int pid) {
    const WorkerProcess& process = site_.workers[pid];
    if (!fleet_.restarts() || process.may_end || process.worker == nullptr) return;
    if (roller_ != nullptr && roller_->is_calling()) return;
    if (process.worker->weights_version() > 0)
      world_.Violate(
          absl::StrCat(world_.name(pid), " has weights and is given up, though nothing had struck it"));
  }

  void Fail(const std::string& what, const absl::Status& status) {
    world_.Violate(absl::StrCat(what, ": ", status.message()));
  }

  void Serve() {
    const absl::Duration span = random_.Between(absl::Milliseconds(200), absl::Seconds(4));
    deaths_.Plan(coordinator_, span);
    if (clients_.empty()) {
      faults_.Plan(span);
      for (int64_t i = 0, count = random_.Between(4, 10) * flags_.data_parallel_size; i < count; ++i)
        clients_.push_back(std::make_shared<Client>(&site_, static_cast<int>(i)));
    }
    std::vector<uint64_t> threads;
    for (const std::shared_ptr<Client>& client : clients_) {
      if (client->ended()) continue;
      client->Begin();
      threads.push_back(world_.Spawn(coordinator_, [this, client, span] {
        Ask(&site_, engine_, client, flags_.auto_sleep.arrivals, span);
      }));
    }
    threads.push_back(world_.Spawn(coordinator_, [this, span] { Operate(span); }));
    if (plan_.resizes) threads.push_back(world_.Spawn(coordinator_, [this, span] { resizer_->Work(span); }));
    threads.push_back(world_.Spawn(coordinator_, [this, span] { pinner_->Work(span); }));
    if (plan_.rolls) threads.push_back(world_.Spawn(coordinator_, [this, span] { roller_->Work(span); }));
    for (const uint64_t thread : threads) world_.Join(thread);
    faults_.End();
    while (!AllEnded()) world_.Sleep(absl::Milliseconds(50));
    if (has_replicas()) AwaitWhole();
    pinner_->End();
    // Unpinning takes effect between two steps, and so not while the engine is falling asleep, for as long as
    // a host hangs.
    while (engine_->Stats().pinned_blocks > 0) world_.Sleep(absl::Milliseconds(50));
  }

  // Until all replicas serve, or sleep in an engine that sleeps by itself.
  void AwaitWhole() {
    const absl::Duration deadline = world_.now() + kWholePatience;
    while (!replica_invariants_->IsWhole(sleeps_by_itself())) {
      if (world_.now() > deadline) return world_.Violate("the replicas do not all come back");
      world_.Sleep(absl::Milliseconds(50));
      operator_->MakeAwake();
    }
  }

  bool AllEnded() const {
    for (const auto& client : clients_)
      if (!client->ended()) return false;
    return true;
  }

  // An operator's thread, which leaves the engine awake, also when its weights are lost later: no file may
  // have them.
  void Operate(absl::Duration span) {
    operator_->Work(span);
    while (!AllEnded()) {
      world_.Sleep(absl::Milliseconds(50));
      const EngineStats stats = engine_->Stats();
      if (stats.residency.weights_stale() || stats.needs_weights) operator_->MakeAwake();
    }
  }

  void Note(const std::string& what, const absl::Status& status) {
    world_.Log(absl::StrCat(what, ": ", status.ok() ? "done" : std::string(status.message())));
    if (!status.ok() && !MayFail(what, status)) Fail(what, status);
    if (has_replicas()) replica_invariants_->NoteCall(what, status);
    if (sleeps_by_itself() || operator_->is_calling() || resizer_->is_calling() || roller_->is_calling())
      return;
    if (has_replicas()) {
      replica_invariants_->CheckSame();
      if (replica_invariants_->may_differ()) return;
    }
    invariants_->CheckResidency();
  }

  bool MayFail(const std::string& what, const absl::Status& status) {
    if (errors_of_faults_.Explain(status)) return true;
    if (absl::StartsWith(what, "Resize")) return false;
    if (absl::IsDataLoss(status)) return false;
    if (HasLostItsBackup(status)) return site_.touches > 0;
    if (what == "Roll" || what == "Revive")
      return absl::IsFailedPrecondition(status) || faults_.num_struck() > 0;
    // Weights that nobody has any more, and weights that an idle engine has put to sleep, are in the way.
    if (absl::IsFailedPrecondition(status)) {
      const EngineStats stats = engine_->Stats();
      if (has_replicas() && stats.needs_weights) return true;
      return sleeps_by_itself() || stats.residency.weights_stale();
    }
    return what == "Update" && faults_.num_struck() > 0;  // a loss ends the call
  }

  // Called within every change of the state.
  void LookAround() {
    if (invariants_ == nullptr) return;
    invariants_->CheckState();
    if (has_replicas()) replica_invariants_->CheckTurns();
    const EngineState state = engine_->state();
    if (state == EngineState::kRecovering) faults_.StrikeAgain();
    deaths_.OnState(state);
  }

  // All requests have ended, and the engine is awake: nothing is held.
  void CheckQuiet() {
    world_.Sleep(absl::Seconds(1));  // until the last steps' replies have come
    if (!sleeps_by_itself()) invariants_->CheckResidency(/*quiet=*/true);
    if (has_replicas()) {
      replica_invariants_->CheckSame();
      replica_invariants_->CheckQuiet(clients_);
    }
    const EngineStats stats = engine_->Stats();
    outcome_.counts["moved requests"] = stats.num_moved;
    outcome_.counts["blocks swapped in"] = stats.swaps.in_blocks;
    outcome_.counts["cached tokens from host memory"] = stats.swaps.host_hit_tokens;
    outcome_.counts["recoveries"] = stats.num_recoveries;
    if (stats.num_recoveries > faults_.num_struck())
      world_.Violate(
          absl::StrCat(stats.num_recoveries, " recoveries after ", faults_.num_struck(), " faults"));
    if (stats.num_running + stats.num_waiting > 0) world_.Violate("sequences are left");
    const int32_t on_host = stats.used_host_blocks - stats.cached_host_blocks;
    if (stats.state == EngineState::kAwake && on_host != 0)
      world_.Violate(absl::StrCat(on_host, " blocks are left in the host tier"));
    if (stats.used_blocks != 0 || stats.free_blocks != stats.total_blocks)
      world_.Violate(absl::StrCat(stats.used_blocks, " blocks are left"));
    for (int replica = 0; replica < flags_.data_parallel_size; ++replica) {
      for (int rank = 0; rank < flags_.world_size; ++rank) CheckOneProcess(replica, rank);
    }
  }

  void CheckOneProcess(int replica, int rank) {
    const size_t live = site_.LiveWorkers(replica, rank).size();
    if (flags_.local_workers && live > 1) world_.Violate(absl::StrCat(live, " processes have rank ", rank));
  }

  Site site_;
  World& world_ = site_.world;
  Random& random_ = site_.world.random();
  const ClusterPlan plan_;
  const Flags& flags_ = plan_.flags;
  Faults faults_;
  ErrorsOfFaults errors_of_faults_;
  Fleet fleet_;
  CoordinatorDeaths deaths_;
  Outcome outcome_;
  int coordinator_ = 0;  // the process
  bool has_remote_workers_ = false;
  int num_failed_starts_ = 0;
  bool found_asleep_ = false;  // the engine with all ranks, at the coordinator's end
  bool served_ = false;        // a coordinator has ended
  Engine* engine_ = nullptr;
  std::vector<GrpcExecutor*> executors_;  // by replica
  std::unique_ptr<Operator> operator_;
  std::unique_ptr<Resizer> resizer_;
  std::unique_ptr<Pinner> pinner_;
  std::unique_ptr<Roller> roller_;
  std::unique_ptr<Invariants> invariants_;
  std::unique_ptr<ReplicaInvariants> replica_invariants_;  // null where there is a single replica
  std::vector<std::shared_ptr<Client>> clients_;
};

Outcome Run(uint64_t seed, bool with_stages, bool verbose) {
  auto cluster = std::make_unique<Cluster>(seed, with_stages, verbose);
  const Outcome outcome = cluster->Run();
  // Not destroyed after a violation: threads may be in the middle of anything.
  if (!outcome.violation.empty()) (void)cluster.release();
  return outcome;
}

}  // namespace

Outcome RunCluster(uint64_t seed, bool verbose) { return Run(seed, /*with_stages=*/false, verbose); }

Outcome RunStages(uint64_t seed, bool verbose) { return Run(seed, /*with_stages=*/true, verbose); }

}  // namespace somnus::simulation
