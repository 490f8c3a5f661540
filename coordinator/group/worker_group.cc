#include "coordinator/group/worker_group.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/null_block.h"
#include "base/random_hex.h"
#include "base/status_macros.h"
#include "coordinator/group/device_name.h"
#include "coordinator/group/load_plan.h"
#include "coordinator/group/load_progress.h"
#include "coordinator/kv_cache_dtype.h"

namespace somnus {
namespace {

constexpr int kMaxAttempts = 5;  // to form an epoch, not counting those that only lack memory
// A process that has ended may hold a GPU's memory for a while: 15 s and more were seen (smg, PR 2464).
constexpr absl::Duration kMemoryPatience = absl::Minutes(1);
constexpr absl::Duration kRetryPause = absl::Seconds(1);
constexpr absl::Duration kFenceRetryPause = absl::Milliseconds(300);
constexpr int kFenceTries = 5;  // of a remote worker, whose connection may have broken alone
constexpr absl::Duration kForever = absl::Hours(24 * 365);

std::string FormatMib(int64_t bytes) { return absl::StrFormat("%.1f MiB", bytes / 1048576.0); }

ExecutorOptions MakeExecutorOptions(const Flags& flags) {
  ExecutorOptions options;
  // No exit status of a remote worker will follow its broken connection, so there is little to wait for.
  if (!flags.local_workers) options.blame_grace = absl::Milliseconds(50);
  return options;
}

void SetAllResident(v1::WorkerSnapshot* snapshot) {
  snapshot->clear_resident_tags();
  for (absl::string_view tag : kMemoryTags) snapshot->add_resident_tags(std::string(tag));
}

// Hosts with different files at one path never serve together.
absl::Status CheckFingerprints(const GroupEpoch& epoch, const std::vector<v1::WorkerSnapshot>& snapshots) {
  const std::string& first = snapshots[0].checkpoint_fingerprint();
  for (size_t rank = 1; rank < snapshots.size(); ++rank) {
    if (snapshots[rank].checkpoint_fingerprint() == first) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "--model: ", epoch.workers()[rank].name, " on ", epoch.workers()[rank].endpoint.host,
        " has read other files than ", epoch.workers()[0].name, " on ", epoch.workers()[0].endpoint.host,
        " (fingerprints ", snapshots[rank].checkpoint_fingerprint().substr(0, 12), " and ",
        first.substr(0, 12), ")"));
  }
  return absl::OkStatus();
}

}  // namespace

WorkerGroup::WorkerGroup(const Flags& flags)
    : flags_(flags),
      options_(MakeExecutorOptions(flags)),
      pool_(flags, {.on_loss = [this](const absl::Status& status) { OnLoss(status); },
                    .on_stall = [this](const absl::Status& status) { OnStall(status); }}),
      group_name_(absl::StrCat("somnus-", getpid(), "-", RandomHex(6))) {}

absl::Status WorkerGroup::Start() {
  RETURN_IF_ERROR(Interruption());
  return pool_.Start();
}

absl::StatusOr<KvPlan> WorkerGroup::Load(const ModelConfig& config, int32_t max_model_len) {
  load_request_ = MakeLoadRequest(flags_, config, max_model_len);
  ASSIGN_OR_RETURN(std::shared_ptr<GroupEpoch> epoch, FormEpoch(Residency()));
  auto executor = std::make_unique<GrpcExecutor>(
      std::move(epoch),
      [this](const Residency& held) {
        absl::MutexLock lock(&mu_);
        wanted_ = held;
      },
      [this](const absl::Status& reason) { Interrupt(reason); });
  {
    absl::MutexLock lock(&mu_);
    executor_ = std::move(executor);
  }
  healer_ = std::thread([this] { HealLoop(); });
  return plan_;
}

void WorkerGroup::HealLoop() {
  while (true) {
    Residency held;
    {
      absl::MutexLock lock(&mu_);
      const auto asked = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return wanted_.has_value() || stop_healing_;
      };
      mu_.Await(absl::Condition(&asked));
      if (!wanted_.has_value()) return;
      held = *wanted_;
      wanted_.reset();
    }
    absl::StatusOr<std::shared_ptr<GroupEpoch>> epoch = FormEpoch(held);
    if (epoch.ok()) {
      LogInfo("epoch {}: the group of {} workers is whole", number_, flags_.world_size);
      executor_->Serve(*std::move(epoch));
    } else {
      executor_->GiveUp(epoch.status());
    }
  }
}

absl::StatusOr<std::shared_ptr<GroupEpoch>> WorkerGroup::FormEpoch(const Residency& held) {
  const int max_attempts = std::min(kMaxAttempts, flags_.max_recoveries + 1);
  const MonotonicTime begin = MonotonicNow();
  int attempts = 0;
  while (true) {
    absl::StatusOr<std::shared_ptr<GroupEpoch>> epoch = TryEpoch(held);
    if (epoch.ok()) return epoch;
    RETURN_IF_ERROR(Interruption());
    if (!WorthAnotherTry(epoch.status())) return epoch;
    const bool lacks_memory = absl::IsResourceExhausted(epoch.status());
    if (lacks_memory ? MonotonicNow() - begin >= kMemoryPatience : ++attempts >= max_attempts) return epoch;
    LogWarning("epoch {} was not formed: {}", number_, std::string(epoch.status().message()));
    if (lacks_memory) stop_.WaitFor(kRetryPause);
  }
}

// A worker that was lost can be replaced; what is wrong with files, flags or sizes stays wrong.
bool WorkerGroup::WorthAnotherTry(const absl::Status& error) const {
  switch (error.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kInternal:
      return true;
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
      return executor_ != nullptr;  // once it has worked, it can work again
    default:
      return false;
  }
}

absl::StatusOr<std::shared_ptr<GroupEpoch>> WorkerGroup::TryEpoch(const Residency& held) {
  const int64_t number = ++number_;
  RETURN_IF_ERROR(pool_.ReplaceLost());
  RETURN_IF_ERROR(FenceSurvivors(number));
  RETURN_IF_ERROR(pool_.ReplaceLost());
  absl::StatusOr<std::vector<WorkerLink>> workers = pool_.Await(Patience());
  // Whoever did not come by now is not waited for again.
  if (absl::IsDeadlineExceeded(workers.status())) {
    return absl::FailedPreconditionError(workers.status().message());
  }
  RETURN_IF_ERROR(workers.status());
  auto epoch = std::make_shared<GroupEpoch>(number, *std::move(workers), options_);
  RETURN_IF_ERROR(SetCurrent(epoch));
  RETURN_IF_ERROR(epoch->AwaitConnections());
  ASSIGN_OR_RETURN(Snapshots snapshots, epoch->Fence());
  for (size_t rank = 0; rank < snapshots.size(); ++rank) {
    if (snapshots[rank].state() != "failed") continue;
    const absl::Status failed =
        absl::UnavailableError(absl::StrCat(epoch->workers()[rank].name, " has failed for good"));
    pool_.Discard(rank, failed);
    return failed;
  }
  RETURN_IF_ERROR(LoadWeights(epoch.get(), &snapshots));
  RETURN_IF_ERROR(CheckFingerprints(*epoch, snapshots));
  RETURN_IF_ERROR(epoch->JoinGroup(absl::StrCat(group_name_, "-", number)));
  RETURN_IF_ERROR(AllocateCache(epoch.get(), &snapshots));
  RETURN_IF_ERROR(epoch->SetResidency(snapshots, held));
  RETURN_IF_ERROR(epoch->Health());
  return epoch;
}

// How long workers may take to come. The first ones of a cluster may take any time.
absl::Duration WorkerGroup::Patience() const {
  if (flags_.local_workers) return flags_.register_timeout;
  return executor_ == nullptr ? kForever : flags_.replacement_timeout;
}

// A worker that does not reply, because it hangs or because nothing connects to it any more, is lost.
absl::Status WorkerGroup::FenceSurvivors(int64_t number) {
  std::vector<std::pair<size_t, WorkerLink>> survivors = pool_.Survivors();
  FailureLatch latch;
  {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(interruption_);
    fencing_ = &latch;
  }
  // Reading a shard is not cut short: it would have to be read again.
  const absl::Duration timeout = loading_ ? options_.load_timeout : options_.fence_timeout;
  const int tries = flags_.local_workers ? 1 : kFenceTries;
  for (int i = 0; i < tries && !survivors.empty(); ++i) {
    if (i > 0) stop_.WaitFor(kFenceRetryPause);
    std::vector<WorkerLink> links;
    for (const auto& [rank, link] : survivors) links.push_back(link);
    const auto results = FenceWorkers(links, number, timeout, &latch);
    std::vector<std::pair<size_t, WorkerLink>> again;
    for (size_t k = 0; k < results.size(); ++k) {
      if (results[k].ok()) continue;
      if (absl::IsUnavailable(results[k].status()) && i + 1 < tries) {
        again.push_back(survivors[k]);
        continue;
      }
      LogWarning("{} is replaced: {}", links[k].name, std::string(results[k].status().message()));
      pool_.Discard(survivors[k].first, results[k].status());
    }
    survivors = std::move(again);
  }
  absl::MutexLock lock(&mu_);
  fencing_ = nullptr;
  return interruption_;
}

absl::Status WorkerGroup::LoadWeights(GroupEpoch* epoch, Snapshots* snapshots) {
  Ranks without(snapshots->size());
  for (size_t rank = 0; rank < without.size(); ++rank)
    without[rank] = (*snapshots)[rank].state() == "created";
  if (std::count(without.begin(), without.end(), true) == 0) return absl::OkStatus();
  LoadProgress progress;
  loading_ = true;
  ASSIGN_OR_RETURN(const std::vector<v1::LoadModelEvent> events,
                   epoch->LoadModel(without, load_request_,
                                    [&](int64_t done, int64_t total) { progress.Update(done, total); }));
  loading_ = false;
  progress.Finish();
  for (size_t rank = 0; rank < without.size(); ++rank) {
    if (!without[rank]) continue;
    v1::WorkerSnapshot& snapshot = (*snapshots)[rank];
    snapshot.set_checkpoint_fingerprint(events[rank].checkpoint_fingerprint());
    snapshot.set_weights_bytes(events[rank].weights_bytes());
    snapshot.set_kv_block_bytes(events[rank].kv_block_bytes());
    SetAllResident(&snapshot);
  }
  return absl::OkStatus();
}

absl::Status WorkerGroup::AllocateCache(GroupEpoch* epoch, Snapshots* snapshots) {
  if (cache_.num_blocks() == 0) RETURN_IF_ERROR(PlanCache(epoch, *snapshots));
  Ranks without(snapshots->size());
  for (size_t rank = 0; rank < without.size(); ++rank) without[rank] = (*snapshots)[rank].num_blocks() == 0;
  const auto num_without = std::count(without.begin(), without.end(), true);
  if (num_without == 0) return absl::OkStatus();
  const bool defer_graphs = num_without < static_cast<int64_t>(without.size());
  RETURN_IF_ERROR(epoch->AllocateKvCache(without, cache_, defer_graphs));
  for (size_t rank = 0; rank < without.size(); ++rank) {
    if (without[rank]) SetAllResident(&(*snapshots)[rank]);
  }
  return absl::OkStatus();
}

absl::Status WorkerGroup::PlanCache(GroupEpoch* epoch, const Snapshots& snapshots) {
  ASSIGN_OR_RETURN(const std::vector<v1::ProfileResponse> profiles, epoch->Profile());
  LogRanks(snapshots, profiles);
  std::vector<int64_t> kv_block_bytes;
  for (const v1::WorkerSnapshot& snapshot : snapshots) kv_block_bytes.push_back(snapshot.kv_block_bytes());
  ASSIGN_OR_RETURN(plan_, PlanBlocks(flags_, epoch->workers()[0].endpoint.device_type, kv_block_bytes,
                                     profiles, load_request_.max_model_len()));
  cache_.set_block_size(flags_.block_size);
  cache_.set_dtype(load_request_.kv_cache_dtype());
  cache_.set_num_blocks(plan_.num_blocks);
  LogInfo("KV cache: {} blocks of {} tokens in {}, {} on rank 0", TotalBlocks(plan_.num_blocks),
          flags_.block_size, KvCacheDTypeName(cache_.dtype()),
          FormatMib(plan_.num_blocks * kv_block_bytes[0]));
  return absl::OkStatus();
}

void WorkerGroup::LogRanks(const Snapshots& snapshots,
                           const std::vector<v1::ProfileResponse>& profiles) const {
  const std::vector<v1::RegisterRequest> members = pool_.Members();
  for (size_t rank = 0; rank < members.size(); ++rank) {
    const v1::RegisterRequest& member = members[rank];
    LogInfo("rank {}: {}, pid {}, {}:{} with {}; weights {}, decode graphs {} in {}", rank, member.host(),
            member.pid(), DeviceName(member.device_type()), member.device_index(),
            FormatMib(member.device_memory_bytes()), FormatMib(snapshots[rank].weights_bytes()),
            FormatMib(profiles[rank].graph_bytes()),
            absl::FormatDuration(absl::Microseconds(profiles[rank].graph_capture_us())));
  }
}

absl::Status WorkerGroup::Interruption() const {
  absl::MutexLock lock(&mu_);
  return interruption_;
}

absl::Status WorkerGroup::SetCurrent(std::shared_ptr<GroupEpoch> epoch) {
  std::shared_ptr<GroupEpoch> last;  // ends without the lock
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(interruption_);
  last = std::exchange(current_, std::move(epoch));
  return pool_.Loss();
}

void WorkerGroup::OnLoss(const absl::Status& reason) {
  std::shared_ptr<GroupEpoch> epoch;
  {
    absl::MutexLock lock(&mu_);
    if (fencing_ != nullptr) fencing_->Fail(reason);
    epoch = current_;
  }
  if (epoch != nullptr) epoch->ReportLoss(reason);
}

void WorkerGroup::OnStall(const absl::Status& stall) {
  absl::MutexLock lock(&mu_);
  if (executor_ != nullptr) executor_->ReportStall(stall);
}

void WorkerGroup::Interrupt(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mu_);
    if (interruption_.ok()) interruption_ = reason;
  }
  stop_.Stop();
  pool_.Interrupt(reason);
  OnLoss(reason);
}

std::vector<v1::RankStatus> WorkerGroup::RankStatuses() {
  std::shared_ptr<GroupEpoch> epoch;
  {
    absl::MutexLock lock(&mu_);
    epoch = current_;
  }
  std::vector<v1::RankStatus> ranks;
  if (epoch == nullptr) return ranks;
  const std::vector<v1::RegisterRequest> members = pool_.Members();
  const auto statuses = epoch->RankStatuses(absl::Seconds(2));
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    v1::RankStatus status;
    status.set_rank(static_cast<int32_t>(rank));
    status.set_host(members[rank].host());
    status.set_pid(members[rank].pid());
    status.set_device(
        absl::StrCat(DeviceName(members[rank].device_type()), ":", members[rank].device_index()));
    if (statuses[rank].ok()) {
      *status.mutable_bytes_by_tag() = statuses[rank]->bytes_by_tag();
      status.set_rss_bytes(statuses[rank]->rss_bytes());
      status.set_graph_bytes(statuses[rank]->graph_bytes());
      status.set_state(statuses[rank]->state());
      status.set_sleep_level(statuses[rank]->sleep_level());
      status.set_weights_version(statuses[rank]->weights_version());
    } else {
      status.set_error(std::string(statuses[rank].status().message()));
    }
    ranks.push_back(std::move(status));
  }
  return ranks;
}

void WorkerGroup::Stop() {
  std::shared_ptr<GroupEpoch> epoch;
  {
    absl::MutexLock lock(&mu_);
    epoch = std::exchange(current_, nullptr);
    stop_healing_ = true;
  }
  if (epoch != nullptr) epoch->Shutdown(absl::Seconds(2));
  Interrupt(absl::CancelledError("stopped"));
  if (healer_.joinable()) healer_.join();
  pool_.Stop();
  std::unique_ptr<GrpcExecutor> executor;
  absl::MutexLock lock(&mu_);
  executor = std::move(executor_);
}

}  // namespace somnus
