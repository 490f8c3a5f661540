#include "tests/simulation/cluster.h"

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/memory_tags.h"
#include "coordinator/engine/auto_sleep_engine.h"
#include "coordinator/engine/engine_loop.h"
#include "coordinator/group/worker_group.h"
#include "tests/simulation/clients.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/operator.h"
#include "tests/simulation/simulated_worker.h"
#include "tests/simulation/site.h"
#include "worker/worker.h"

namespace somnus::simulation {
namespace {

constexpr absl::Duration kLimit = absl::Minutes(20);  // of virtual time; far more than any run needs
constexpr absl::Duration kLeavePatience =
    absl::Minutes(6);  // for remote workers, which look for a coordinator
constexpr absl::Duration kGrace = absl::Seconds(10);

class Cluster {
 public:
  Cluster(uint64_t seed, bool verbose) : site_(seed, RunWorker), faults_(&site_, DrawFlags()) {
    world_.SetVerbose(verbose);
    if (flags_.wake_self_check) faults_.DamageBackups();
  }

  Outcome Run() {
    coordinator_ = world_.NewProcess("coordinator");
    site_.network.Watch(coordinator_);
    const uint64_t main = world_.Spawn(coordinator_, [this] { Main(); });
    site_.on_worker_end = [this](int pid) { CheckGivenUp(pid); };
    if (world_.Run(main, kLimit)) CheckNobodyIsLeft();
    outcome_.violation = world_.violation();
    outcome_.trace = world_.trace();
    outcome_.num_requests = static_cast<int>(clients_.size());
    outcome_.num_faults = faults_.num_struck();
    outcome_.seconds = absl::ToDoubleSeconds(world_.now());
    return outcome_;
  }

 private:
  // Returns the number of ranks.
  int DrawFlags() {
    flags_.model = "simulated";
    flags_.worker_binary = "/proc/self/exe";
    flags_.device = v1::DEVICE_TYPE_CPU;
    flags_.world_size = static_cast<int32_t>(random_.Between(1, 3));
    flags_.local_workers = random_.Chance(0.6);
    flags_.cluster_host = "host";
    flags_.cluster_port = 1;
    flags_.block_size = site_.model.block_size;
    flags_.max_model_len = 64;
    flags_.kv_cache_memory_bytes = random_.Between(20, 48) * FakeVmmDriver::kUnit;
    flags_.max_num_seqs = static_cast<int32_t>(random_.Between(2, site_.model.max_num_seqs));
    flags_.max_num_batched_tokens = static_cast<int32_t>(random_.Between(8, 48));
    flags_.async_scheduling = random_.Chance(0.7);
    flags_.scheduling_policy = random_.Chance(0.3) ? "priority" : "fcfs";
    flags_.backup = random_.Chance(0.5) ? v1::BACKUP_POLICY_RETAIN : v1::BACKUP_POLICY_RELEASE;
    flags_.keep_kv_on_sleep = random_.Chance(0.5);
    keeps_cached_blocks_ = random_.Chance(0.7);
    flags_.swap_space_bytes = random_.Between(1, 24) * FakeVmmDriver::kUnit;
    flags_.wake_self_check = random_.Chance(0.5);
    if (random_.Chance(0.2)) flags_.sleep_arrivals = random_.Chance(0.5) ? "wake" : "reject";
    if (random_.Chance(0.2)) flags_.idle_sleep = random_.Between(absl::Milliseconds(50), absl::Seconds(1));
    site_.weights[1] = flags_.model.back();
    return flags_.world_size;
  }

  EngineOptions MakeEngineOptions(const KvPlan& plan) const {
    EngineOptions options;
    options.scheduler.max_num_seqs = flags_.max_num_seqs;
    options.scheduler.max_num_batched_tokens = flags_.max_num_batched_tokens;
    options.scheduler.max_model_len = plan.max_model_len;
    options.scheduler.policy =
        flags_.scheduling_policy == "priority" ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
    options.scheduler.blocks.num_blocks = plan.num_blocks;
    options.scheduler.blocks.num_host_blocks = plan.num_host_blocks;
    options.scheduler.blocks.block_size = flags_.block_size;
    options.async_scheduling = flags_.async_scheduling;
    options.keep_kv_on_sleep = KeepsKvOnSleep(flags_);
    options.keeps_cached_blocks = keeps_cached_blocks_;
    options.wake_self_check = flags_.wake_self_check;
    options.hang_timeout = flags_.hang_timeout;
    options.vocab_size = site_.model.vocab_size;
    return options;
  }

  bool sleeps_by_itself() const {
    return flags_.sleep_arrivals == "wake" || flags_.idle_sleep > absl::ZeroDuration();
  }

  std::shared_ptr<Engine> MakeEngine(const EngineOptions& options) {
    const auto make = [&](EngineObserver* observer) {
      return std::make_shared<EngineLoop>(options, executor_, observer);
    };
    if (flags_.sleep_arrivals == "queue" && !sleeps_by_itself()) return make(nullptr);
    AutoSleepOptions automatic;
    if (flags_.sleep_arrivals == "wake") automatic.arrivals = SleepArrivals::kWake;
    if (flags_.sleep_arrivals == "reject") automatic.arrivals = SleepArrivals::kReject;
    automatic.idle_sleep = flags_.idle_sleep;
    automatic.idle_level = random_.Chance(0.5) ? 1 : 2;
    return std::make_shared<AutoSleepEngine>(automatic, nullptr, make);
  }

  // The coordinator's main thread.
  void Main() {
    {
      WorkerGroup group(flags_);
      ModelConfig config;
      config.vocab_size = site_.model.vocab_size;
      config.stored_type = StorageType::kF32;
      if (absl::Status status = group.Start(config, flags_.max_model_len, FilesOf(flags_.model));
          !status.ok())
        return Fail("Start", status);
      if (!flags_.local_workers) StartRemoteWorkers(group.cluster_address());
      const absl::StatusOr<KvPlan> plan = group.Load();
      if (!plan.ok()) return Fail("Load", plan.status());
      EngineOptions options = MakeEngineOptions(*plan);
      options.weights = group.weights();
      executor_ = group.executor();
      const std::shared_ptr<Engine> engine = MakeEngine(options);
      engine_ = engine.get();
      operator_ = std::make_unique<Operator>(
          &site_, &faults_, engine_,
          [this](const std::string& what, const absl::Status& status) { Note(what, status); });
      engine->OnStateChange([this] { world_.LookAround([this] { CheckState(); }); });
      Serve();
      if (!world_.violation().empty()) return;
      CheckQuiet();
      stopping_ = true;
      engine->DrainAndStop(kGrace);
      engine->OnStateChange(nullptr);
      group.Stop();
    }
    AwaitWorkersEnd();
  }

  // A survivor keeps its weights.
  void CheckGivenUp(int pid) {
    const WorkerProcess& process = site_.workers[pid];
    if (stopping_ || process.may_end || process.worker == nullptr) return;
    if (process.worker->weights_version() > 0)
      world_.Violate(
          absl::StrCat(world_.name(pid), " has weights and is given up, though nothing had struck it"));
  }

  void Fail(const std::string& what, const absl::Status& status) {
    world_.Violate(absl::StrCat(what, ": ", status.message()));
  }

  // As Slurm and Kubernetes do: whoever ends is started again.
  void StartRemoteWorkers(const std::string& coordinator) {
    for (int rank = 0; rank < flags_.world_size; ++rank) StartRemoteWorker(rank, coordinator);
  }
  void StartRemoteWorker(int rank, const std::string& coordinator) {
    const int pid = site_.StartWorker(rank, coordinator, /*local=*/false);
    world_.OnEnd(pid, [this, rank, coordinator] {
      if (stopping_) return;
      world_.After(random_.Between(absl::Milliseconds(50), absl::Seconds(3)), [this, rank, coordinator] {
        if (!stopping_) StartRemoteWorker(rank, coordinator);
      });
    });
    // A host that hangs is found by somebody, some time.
    world_.After(absl::Seconds(60), [this, pid] {
      if (world_.stopped(pid)) world_.Kill(pid, "was killed by signal 9 (Killed)");
    });
  }

  void Serve() {
    const absl::Duration span = random_.Between(absl::Milliseconds(200), absl::Seconds(4));
    faults_.Plan(span);
    std::vector<uint64_t> threads;
    const int64_t num_clients = random_.Between(4, 10);
    for (int i = 0; i < num_clients; ++i) {
      clients_.push_back(std::make_shared<Client>(&site_, i));
      threads.push_back(
          world_.Spawn(coordinator_, [this, client = clients_.back(), span] { Ask(client, span); }));
    }
    threads.push_back(world_.Spawn(coordinator_, [this, span] { Operate(span); }));
    for (const uint64_t thread : threads) world_.Join(thread);
    faults_.End();
    while (!AllEnded()) world_.Sleep(absl::Milliseconds(50));
  }

  bool AllEnded() const {
    for (const auto& client : clients_)
      if (!client->ended()) return false;
    return true;
  }

  // A client's thread.
  void Ask(const std::shared_ptr<Client>& client, absl::Duration span) {
    world_.Sleep(random_.Between(absl::ZeroDuration(), span));
    EngineRequest request = client->MakeRequest();
    request.sink = client;
    absl::Status status = engine_->Submit(request);
    while (absl::IsFailedPrecondition(status) && flags_.sleep_arrivals == "reject") {
      world_.Sleep(random_.Between(absl::Milliseconds(10), absl::Milliseconds(200)));
      status = engine_->Submit(request);
    }
    if (!status.ok()) return Fail(client->id(), status);
    if (!random_.Chance(0.15)) return;
    world_.Sleep(random_.Between(absl::ZeroDuration(), absl::Milliseconds(200)));
    client->NoteAbort();
    engine_->Abort(client->id());
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
    outcome_.num_sleeps = operator_->num_sleeps();
    outcome_.num_weights_changes = operator_->num_weights_changes();
  }

  void Note(const std::string& what, const absl::Status& status) {
    world_.Log(absl::StrCat(what, ": ", status.ok() ? "done" : std::string(status.message())));
    if (!status.ok() && !MayFail(what, status)) Fail(what, status);
    if (!sleeps_by_itself()) CheckResidency();
  }

  bool MayFail(const std::string& what, const absl::Status& status) const {
    if (faults_.memory_fails()) return true;
    if (absl::IsDataLoss(status)) return faults_.damaged();
    // Weights that nobody has any more, and those that an idle engine has put to sleep, are in the way.
    if (absl::IsFailedPrecondition(status))
      return sleeps_by_itself() || engine_->Stats().residency.weights_stale();
    return what == "Update" && faults_.num_struck() > 0;  // a loss ends it
  }

  // Every tag of every rank is what the engine says, and so are their bytes. Called when no lifecycle call is
  // under way.
  void CheckResidency() {
    const EngineStats stats = engine_->Stats();
    if ((stats.state != EngineState::kAwake && stats.state != EngineState::kAsleep) ||
        !executor_->Health().ok())
      return;
    GroupBytes bytes;
    int num_members = 0;
    for (const auto& [pid, process] : site_.workers) {
      if (!world_.alive(pid) || process.worker == nullptr) continue;
      const v1::WorkerSnapshot snapshot = process.worker->Snapshot();
      if (snapshot.group_epoch() != stats.group_epoch || snapshot.state() == "failed") continue;
      const v1::WorkerStatusResponse status = process.worker->GetStatus();
      for (const auto& [tag, count] : status.bytes_by_tag()) bytes.resident[tag] += count;
      for (const auto& [tag, count] : status.host_bytes_by_tag()) bytes.host[tag] += count;
      ++num_members;
      std::set<std::string> asleep(kMemoryTags.begin(), kMemoryTags.end());
      for (const std::string& tag : snapshot.resident_tags()) asleep.erase(tag);
      if (asleep == stats.residency.asleep() && snapshot.sleep_level() == stats.residency.level()) continue;
      world_.Violate(absl::StrCat(world_.name(pid), " is asleep at level ", snapshot.sleep_level(), " with ",
                                  asleep.size(), " tags, the engine at level ", stats.residency.level(),
                                  " with ", stats.residency.asleep().size()));
    }
    if (num_members < flags_.world_size) return;  // a loss that the engine has not heard of
    if (bytes.resident != stats.resident_bytes || bytes.host != stats.host_bytes)
      world_.Violate("the ranks hold other bytes than the engine says");
  }

  // The published state is the true one. Called within every change of it, when no lifecycle call is under
  // way.
  void CheckState() {
    if (engine_ == nullptr) return;
    const EngineState state = engine_->state();
    world_.Log(absl::StrCat("the engine is ", EngineStateName(state)));
    if (state == EngineState::kRecovering) faults_.StrikeAgain();
    if (state == EngineState::kFailed)
      return world_.Violate(absl::StrCat("the engine failed: ", engine_->Stats().error));
    if ((state != EngineState::kAwake && state != EngineState::kAsleep) || !executor_->Health().ok()) return;
    int64_t version = 0;
    for (const auto& [pid, process] : site_.workers) {
      if (!world_.alive(pid) || process.worker == nullptr) continue;
      if (process.worker->group_epoch() != executor_->group_epoch()) continue;  // given up by the group
      if (site_.network.given_up(pid))
        world_.Violate(absl::StrCat(world_.name(pid), " is a member of the group that has given it up"));
      const v1::WorkerStatusResponse status = process.worker->GetStatus();
      if (status.state() == "failed") continue;
      if (state == EngineState::kAwake) CheckVersion(pid, status.weights_version(), &version);
      if (status.state() == EngineStateName(state) || IsAsleepWithMemory(state, *process.worker)) continue;
      world_.Violate(absl::StrCat(world_.name(pid), " is ", status.state(),
                                  " while the engine says that it is ", EngineStateName(state)));
    }
  }

  // Weights that are replaced or stale are mapped, and so is memory that has not been checked.
  bool IsAsleepWithMemory(EngineState state, const Worker& worker) const {
    if (state != EngineState::kAsleep) return false;
    return flags_.wake_self_check || operator_->changes_weights() || worker.Snapshot().weights_stale();
  }

  // All ranks that serve together have the same weights.
  void CheckVersion(int pid, int64_t version, int64_t* common) {
    if (*common == 0) *common = version;
    if (version > 0 && *common == version) return;
    world_.Violate(absl::StrCat(world_.name(pid), " serves version ", version,
                                " of the weights, another one ", *common));
  }

  // All requests have ended, and the engine is awake: nothing is held.
  void CheckQuiet() {
    const EngineStats stats = engine_->Stats();
    outcome_.num_recoveries = stats.num_recoveries;
    if (stats.num_recoveries > faults_.num_struck())
      world_.Violate(
          absl::StrCat(stats.num_recoveries, " recoveries after ", faults_.num_struck(), " faults"));
    if (stats.num_running + stats.num_waiting > 0) world_.Violate("sequences are left");
    if (stats.state == EngineState::kAwake && stats.used_host_blocks != 0)
      world_.Violate(absl::StrCat(stats.used_host_blocks, " blocks are left in the host tier"));
    if (stats.used_blocks != 0 || stats.free_blocks != stats.total_blocks)
      world_.Violate(absl::StrCat(stats.used_blocks, " blocks are left"));
    for (int rank = 0; rank < flags_.world_size; ++rank) {
      const size_t live = site_.LiveWorkers(rank).size();
      if (flags_.local_workers && live > 1) world_.Violate(absl::StrCat(live, " processes have rank ", rank));
    }
  }

  void AwaitWorkersEnd() {
    const absl::Duration deadline =
        world_.now() + (flags_.local_workers ? absl::ZeroDuration() : kLeavePatience);
    while (NumLive() > 0 && world_.now() < deadline) world_.Sleep(absl::Milliseconds(200));
  }
  int NumLive() const {
    int live = 0;
    for (const auto& [pid, worker] : site_.workers) live += world_.alive(pid);
    return live;
  }
  void CheckNobodyIsLeft() {
    if (const int live = NumLive(); live > 0)
      world_.Violate(absl::StrCat(live, " worker processes are left"));
  }

  Site site_;
  World& world_ = site_.world;
  Random& random_ = site_.world.random();
  Flags flags_;
  bool keeps_cached_blocks_ = true;  // in the host tier, too
  Faults faults_;
  Outcome outcome_;
  int coordinator_ = 0;
  bool stopping_ = false;
  Engine* engine_ = nullptr;
  GrpcExecutor* executor_ = nullptr;
  std::unique_ptr<Operator> operator_;
  std::vector<std::shared_ptr<Client>> clients_;
};

}  // namespace

Outcome RunCluster(uint64_t seed, bool verbose) {
  // Not destroyed after a violation: threads may be in the middle of anything.
  auto cluster = std::make_unique<Cluster>(seed, verbose);
  const Outcome outcome = cluster->Run();
  return outcome;
}

}  // namespace somnus::simulation
