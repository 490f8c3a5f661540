#include "tests/simulation/cluster.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/engine/auto_sleep_engine.h"
#include "coordinator/engine/engine_loop.h"
#include "coordinator/group/worker_group.h"
#include "coordinator/scheduler/worker_drafts.h"
#include "tests/simulation/clients.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/foreseer.h"
#include "tests/simulation/invariants.h"
#include "tests/simulation/operator.h"
#include "tests/simulation/pinner.h"
#include "tests/simulation/resizer.h"
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
    if (site_.spills) faults_.BreakDisk();
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
    if (resizer_ != nullptr) outcome_.num_resizes = resizer_->num_resizes();
    if (pinner_ != nullptr) outcome_.num_pins = pinner_->num_pins();
    outcome_.num_faults = faults_.num_struck();
    outcome_.num_spill_writes = site_.disk.num_writes();
    outcome_.num_disk_errors = site_.disk.num_full() + site_.disk.num_damaged();
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
    flags_.num_speculative_tokens = 2 * (flags_.max_num_batched_tokens % 4);
    if (flags_.max_num_seqs % 2 == 0) flags_.speculative = "draft";
    if (flags_.has_draft_model()) {
      flags_.draft_model = "draft";
      site_.model.max_proposals = flags_.num_speculative_tokens;
      site_.model.wrong_period = 7;
    }
    flags_.async_scheduling = random_.Chance(0.7);
    flags_.scheduling_policy = random_.Chance(0.3) ? "priority" : "fcfs";
    constexpr v1::BackupPolicy kPolicies[] = {v1::BACKUP_POLICY_RETAIN, v1::BACKUP_POLICY_RELEASE,
                                              v1::BACKUP_POLICY_FILE};
    flags_.backup = kPolicies[std::min<int64_t>(random_.Between(0, 3), 2)];
    // Of files the checkpoint's own are the backup, or spill files.
    site_.spills = flags_.backup == v1::BACKUP_POLICY_FILE && random_.Chance(0.5);
    if (site_.spills) flags_.spill_dir = std::string(Disk::kDir);
    flags_.keep_kv_on_sleep = random_.Chance(0.5);
    keeps_cached_blocks_ = random_.Chance(0.7);
    flags_.swap_space_bytes = random_.Between(1, 24) * FakeVmmDriver::kUnit;
    flags_.preemption = random_.Chance(0.6) ? "swap" : "recompute";
    if (flags_.kv_cache_memory_bytes / FakeVmmDriver::kUnit % 3 == 0) flags_.prefix_cache_on_host = "on";
    flags_.wake_self_check = random_.Chance(0.5);
    resizes_ = random_.Chance(0.5);
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
    options.scheduler.speculation.num_speculative_tokens = flags_.num_speculative_tokens;
    options.scheduler.speculation.asks_workers = flags_.has_draft_model();
    options.scheduler.speculation.make_drafter = [this]() -> std::unique_ptr<Drafter> {
      if (flags_.has_draft_model()) return std::make_unique<WorkerDrafts>();
      return std::make_unique<Foreseer>(&site_);
    };
    options.scheduler.preemption = MaySwap(flags_) ? PreemptionMode::kSwap : PreemptionMode::kRecompute;
    if (CachesOnHost(flags_)) options.scheduler.host_prefix_caching = HostPrefixCaching::kOn;
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
      const auto note = [this](const std::string& what, const absl::Status& status) { Note(what, status); };
      operator_ = std::make_unique<Operator>(&site_, &faults_, engine_, note);
      // Of an engine that wakes by itself a wake-up may be under way at any time.
      if (!sleeps_by_itself()) operator_->TouchFiles();
      resizer_ = std::make_unique<Resizer>(&site_, engine_, note);
      pinner_ = std::make_unique<Pinner>(&site_, engine_);
      invariants_ = std::make_unique<Invariants>(&site_, &flags_, &faults_, engine_, executor_,
                                                 [this] { return operator_->changes_weights(); });
      engine->OnStateChange([this] { world_.LookAround([this] { LookAround(); }); });
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
    if (resizes_) threads.push_back(world_.Spawn(coordinator_, [this, span] { resizer_->Work(span); }));
    threads.push_back(world_.Spawn(coordinator_, [this, span] { pinner_->Work(span); }));
    for (const uint64_t thread : threads) world_.Join(thread);
    faults_.End();
    while (!AllEnded()) world_.Sleep(absl::Milliseconds(50));
    pinner_->End();
    // Between two steps it has no effect while the engine is falling asleep, for as long as a host hangs.
    while (engine_->Stats().pinned_blocks > 0) world_.Sleep(absl::Milliseconds(50));
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
    if (!sleeps_by_itself() && !operator_->is_calling() && !resizer_->is_calling())
      invariants_->CheckResidency();
  }

  bool MayFail(const std::string& what, const absl::Status& status) {
    if (IsOfDisk(status)) return true;
    if (faults_.memory_fails()) return true;
    if (absl::StartsWith(what, "Resize")) return false;
    if (absl::IsDataLoss(status)) return faults_.damaged();
    if (HasLostItsBackup(status)) return site_.touches > 0;
    // Weights that nobody has any more, and those that an idle engine has put to sleep, are in the way.
    if (absl::IsFailedPrecondition(status))
      return sleeps_by_itself() || engine_->Stats().residency.weights_stale();
    return what == "Update" && faults_.num_struck() > 0;  // a loss ends it
  }

  // Each error of a disk has a fault of its own.
  bool IsOfDisk(const absl::Status& status) {
    if (absl::IsResourceExhausted(status))
      return std::exchange(seen_full_, site_.disk.num_full()) < site_.disk.num_full();
    if (absl::IsDataLoss(status))
      return std::exchange(seen_damaged_, site_.disk.num_damaged()) < site_.disk.num_damaged();
    return false;
  }

  // Called within every change of the state.
  void LookAround() {
    if (invariants_ == nullptr) return;
    invariants_->CheckState();
    if (engine_->state() == EngineState::kRecovering) faults_.StrikeAgain();
  }

  // All requests have ended, and the engine is awake: nothing is held.
  void CheckQuiet() {
    world_.Sleep(absl::Seconds(1));  // until the last steps' replies have come
    if (!sleeps_by_itself()) invariants_->CheckResidency(/*quiet=*/true);
    const EngineStats stats = engine_->Stats();
    outcome_.num_swapped_blocks = stats.swaps.in_blocks;
    outcome_.num_host_hit_tokens = stats.swaps.host_hit_tokens;
    outcome_.num_recoveries = stats.num_recoveries;
    if (stats.num_recoveries > faults_.num_struck())
      world_.Violate(
          absl::StrCat(stats.num_recoveries, " recoveries after ", faults_.num_struck(), " faults"));
    if (stats.num_running + stats.num_waiting > 0) world_.Violate("sequences are left");
    const int32_t on_host = stats.used_host_blocks - stats.cached_host_blocks;
    if (stats.state == EngineState::kAwake && on_host != 0)
      world_.Violate(absl::StrCat(on_host, " blocks are left in the host tier"));
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
  bool resizes_ = false;             // the KV cache
  Faults faults_;
  Outcome outcome_;
  int coordinator_ = 0;
  int seen_full_ = 0, seen_damaged_ = 0;  // Disk::num_full and num_damaged, at the last errors
  bool stopping_ = false;
  Engine* engine_ = nullptr;
  GrpcExecutor* executor_ = nullptr;
  std::unique_ptr<Operator> operator_;
  std::unique_ptr<Resizer> resizer_;
  std::unique_ptr<Pinner> pinner_;
  std::unique_ptr<Invariants> invariants_;
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
