#include "coordinator/group/epoch_former.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/heartbeat.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/null_block.h"
#include "base/random_hex.h"
#include "base/status_macros.h"
#include "coordinator/executor/transition_speeds.h"
#include "coordinator/flags/kv_cache_dtype.h"
#include "coordinator/group/device_name.h"
#include "coordinator/group/held_state.h"
#include "coordinator/group/load_plan.h"
#include "coordinator/group/load_progress.h"

namespace somnus {
namespace {

// A process that has ended may hold a GPU's memory for a while: 15 s and more were seen
// (github.com/smg-project/smg/pull/2464).
constexpr absl::Duration kMemoryPatience = absl::Minutes(1);
// From the start of a local worker's program until the worker registers; a GPU's driver may take some of
// these seconds.
constexpr absl::Duration kRespawnPatience = absl::Seconds(20);
constexpr absl::Duration kRetryPause = absl::Seconds(1);
constexpr absl::Duration kFenceRetryPause = absl::Milliseconds(300);
// The starts of a local worker that ends again and again for an unknown cause, before the first epoch: each
// start reads files again.
constexpr int kFirstStarts = 3;
constexpr int kFenceTries = 5;  // of a remote worker: perhaps only the connection broke
constexpr absl::Duration kForever = absl::Hours(24 * 365);

std::string FormatMib(int64_t bytes) { return absl::StrFormat("%.1f MiB", bytes / 1048576.0); }

// The ranks whose snapshots have the property.
template <typename Property>
Ranks RanksWith(const std::vector<v1::WorkerSnapshot>& snapshots, const Property& property) {
  Ranks ranks;
  for (const v1::WorkerSnapshot& snapshot : snapshots) ranks.push_back(property(snapshot));
  return ranks;
}

// By rank.
std::vector<int64_t> KvBlockBytes(const std::vector<v1::WorkerSnapshot>& snapshots) {
  std::vector<int64_t> bytes;
  for (const v1::WorkerSnapshot& snapshot : snapshots) bytes.push_back(snapshot.kv_block_bytes());
  return bytes;
}

// Completes the snapshot of a new rank that is asleep like its group.
void SetAsGroup(const Residency& held, v1::WorkerSnapshot* snapshot) {
  snapshot->clear_resident_tags();
  for (const std::string tag : kMemoryTags) {
    if (held.asleep().count(tag) == 0) snapshot->add_resident_tags(tag);
  }
  snapshot->set_sleep_level(held.level());
}

}  // namespace

EpochFormer::EpochFormer(const Flags* flags, const ExecutorOptions& options, WorkerPool* pool,
                         CurrentEpoch* current)
    : flags_(*flags),
      options_(options),
      pool_(*pool),
      current_(*current),
      group_name_(absl::StrCat("somnus-", getpid(), "-", RandomHex(6))) {}

void EpochFormer::NoteServing() {
  held_.weights.version = load_request_.weights_version();
  held_.weights.path = load_request_.model_path();
  held_.weights.fingerprint = fingerprint_;
  serves_ = true;
}

absl::StatusOr<std::shared_ptr<GroupEpoch>> EpochFormer::Form(Held held) {
  // Attempts that only lacked memory, or a newcomer with the right files, are bounded by time.
  const bool is_first = !serves_ && flags_.local_workers && pool_.last_epoch() == 0;
  const int attempts_of_flag = flags_.engine.max_recoveries + 1;
  const int max_attempts = is_first ? std::min(attempts_of_flag, kFirstStarts) : attempts_of_flag;
  const MonotonicTime begin = MonotonicNow();
  int attempts = 0;
  while (true) {
    absl::StatusOr<std::shared_ptr<GroupEpoch>> epoch = TryEpoch(&held, max_attempts);
    if (epoch.ok()) return epoch;
    RETURN_IF_ERROR(current_.Interruption());
    if (!WorthAnotherTry(epoch.status())) return epoch;
    const bool lacks_memory = absl::IsResourceExhausted(epoch.status());
    const absl::Duration bound = lacks_memory ? kMemoryPatience : Patience();
    const bool by_time = lacks_memory || refused_newcomer_;
    if (by_time ? MonotonicNow() - begin >= bound : ++attempts >= max_attempts) return epoch;
    LogWarning("{}epoch {} was not formed: {}", ReplicaPrefix(flags_), number_,
               std::string(epoch.status().message()));
    if (lacks_memory) current_.WaitFor(kRetryPause);
  }
}

// A worker that was lost can be replaced; wrong files, flags or sizes stay wrong.
bool EpochFormer::WorthAnotherTry(const absl::Status& error) const {
  switch (error.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
      return true;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
      return serves_;  // the group has worked once, so it can work again
    default:
      return false;
  }
}

absl::StatusOr<std::shared_ptr<GroupEpoch>> EpochFormer::TryEpoch(Held* held, int max_starts) {
  BeginNumber();
  refused_newcomer_ = false;
  has_weights_ = false;
  // Processes of a first start may have ended before Await.
  RETURN_IF_ERROR(pool_.ReplaceLost(/*starts_refused=*/serves_, max_starts));
  pool_.Record(number_);
  RETURN_IF_ERROR(FenceSurvivors());
  RETURN_IF_ERROR(pool_.ReplaceLost(/*starts_refused=*/false, max_starts));
  ASSIGN_OR_RETURN(std::vector<WorkerLink> workers, AwaitWorkers());
  ASSIGN_OR_RETURN(std::shared_ptr<GroupEpoch> epoch, Connect(std::move(workers)));
  ASSIGN_OR_RETURN(Snapshots snapshots, epoch->Fence());
  RETURN_IF_ERROR(CheckFenced(*epoch, snapshots, *held));
  if (!serves_) {
    NoteAdopted(snapshots);
  } else {
    held_ = HeldAgain(*held, snapshots);
  }
  RETURN_IF_ERROR(LoadWeights(epoch.get(), &snapshots));
  has_weights_ = true;
  const bool may_differ = !AreOfUse(held_);
  if (!may_differ) RETURN_IF_ERROR(CheckFingerprints(*epoch, snapshots));
  RETURN_IF_ERROR(epoch->JoinGroup(absl::StrCat(group_name_, "-", number_), may_differ));
  RETURN_IF_ERROR(AllocateCache(epoch.get(), &snapshots));
  RETURN_IF_ERROR(epoch->SetKvCacheSize(snapshots, cache_.num_mapped_blocks()));
  RETURN_IF_ERROR(epoch->SetResidency(snapshots, held_.residency));
  if (held_.residency.weights_stale()) {
    ASSIGN_OR_RETURN(const bool overwrites, epoch->weights()->MakeStale(snapshots));
    held->weights.overwritten |= overwrites;  // for further attempts, too
    held_.weights.overwritten |= overwrites;
  }
  RETURN_IF_ERROR(SetAdapters(epoch.get(), held));
  RETURN_IF_ERROR(epoch->Health());
  return epoch;
}

// An adapter whose files have gone, or have become wrong, must not end the engine: the adapter is dropped,
// and requests for it get an error. The first epoch drops the adapters of an earlier coordinator.
absl::Status EpochFormer::SetAdapters(GroupEpoch* epoch, Held* held) {
  if (load_request_.max_adapters() == 0) return absl::OkStatus();
  const std::vector<HeldAdapter> wanted = held_.adapters;
  const absl::Status all = epoch->SetAdaptersOnAll(wanted).status();
  if (all.ok() || !epoch->Health().ok() || wanted.empty()) return all;
  std::vector<HeldAdapter> possible;
  for (const HeldAdapter& adapter : wanted) {
    possible.push_back(adapter);
    const absl::Status one = epoch->SetAdaptersOnAll(possible).status();
    RETURN_IF_ERROR(epoch->Health());
    if (one.ok()) continue;
    LogError("{}an adapter is dropped: {}", ReplicaPrefix(flags_), std::string(one.message()));
    held->dropped_adapters[adapter.id] = one;
    possible.pop_back();
  }
  held_.dropped_adapters = held->dropped_adapters;
  held->adapters = held_.adapters = possible;
  return epoch->SetAdaptersOnAll(possible).status();
}

absl::StatusOr<std::vector<WorkerLink>> EpochFormer::AwaitWorkers() {
  absl::StatusOr<std::vector<WorkerLink>> workers = pool_.Await(Patience());
  if (!absl::IsDeadlineExceeded(workers.status())) return workers;
  // A process that hangs before its registration is started once more, in the next attempt; a remote worker
  // that did not come by now is not waited for again.
  const bool again = flags_.local_workers && serves_;
  if (!again) return absl::FailedPreconditionError(workers.status().message());
  pool_.DiscardAbsent(workers.status());
  return absl::UnavailableError(workers.status().message());
}

absl::StatusOr<std::shared_ptr<GroupEpoch>> EpochFormer::Connect(std::vector<WorkerLink> workers) {
  if (pool_.last_epoch() >= number_) BeginNumber();
  pool_.Record(number_);
  auto epoch = std::make_shared<GroupEpoch>(number_, std::move(workers), options_);
  RETURN_IF_ERROR(current_.Set(epoch));
  RETURN_IF_ERROR(pool_.Loss());  // a loss that was reported before the epoch was there
  const Heartbeat::Wait wait(options_.connect_timeout);
  RETURN_IF_ERROR(epoch->AwaitConnections());
  return epoch;
}

void EpochFormer::BeginNumber() { number_ = std::max(number_, pool_.last_epoch()) + 1; }

// Discards the workers that cannot serve in this epoch; an error when there are any.
absl::Status EpochFormer::CheckFenced(const GroupEpoch& epoch, const Snapshots& snapshots, const Held& held) {
  const int32_t num_blocks = cache_.num_blocks() > 0 ? cache_.num_blocks() : NumBlocksOf(snapshots);
  absl::Status first;
  for (size_t rank = 0; rank < snapshots.size(); ++rank) {
    absl::Status status;
    if (!serves_) status = pool_.CheckHeld(rank, snapshots[rank]);
    if (snapshots[rank].state() == "failed") {
      status = absl::UnavailableError("has failed for good");
    } else if (snapshots[rank].num_blocks() > 0 && snapshots[rank].num_blocks() != num_blocks) {
      status = absl::UnavailableError(
          absl::StrCat("has ", snapshots[rank].num_blocks(), " KV blocks, not ", num_blocks));
    } else if (HasOtherWeights(snapshots[rank], held)) {
      status = absl::UnavailableError(absl::StrCat("has version ", snapshots[rank].weights_version(),
                                                   " of the weights, not ", held.weights.version));
    }
    if (status.ok()) continue;
    status = absl::UnavailableError(absl::StrCat(epoch.workers()[rank].name, " ", status.message()));
    pool_.Discard(rank, status);
    if (first.ok()) first = status;
  }
  return first;
}

// The state that the first epoch begins with. Workers without weights follow the rest.
void EpochFormer::NoteAdopted(const Snapshots& snapshots) {
  if (cache_.num_blocks() > 0) return;  // an earlier attempt has decided
  held_.residency = HeldBy(snapshots);
  held_.num_mapped_blocks = NumMappedBlocksOf(snapshots);
  const int32_t num_blocks = NumBlocksOf(snapshots);
  if (num_blocks == 0) return;
  const int32_t num_host_blocks = HostBlocks(flags_, KvBlockBytes(snapshots), num_blocks);
  SetCache({.num_blocks = num_blocks,
            .num_host_blocks = NumHostBlocksOf(snapshots, num_host_blocks),
            .max_model_len = LongestSequence(
                num_blocks, PlanRequestOf(flags_, load_request_.max_model_len(), attention_reach_)),
            .kv_block_bytes = SumBlockBytes(KvBlockBytes(snapshots))});
  LogInfo("{}{} workers hold weights and {} KV blocks of an earlier coordinator, {}", ReplicaPrefix(flags_),
          std::count_if(snapshots.begin(), snapshots.end(),
                        [](const v1::WorkerSnapshot& snapshot) { return snapshot.weights_version() > 0; }),
          TotalBlocks(num_blocks),
          held_.residency.awake() ? "awake" : absl::StrCat("asleep at level ", held_.residency.level()));
}

void EpochFormer::SetCache(const KvPlan& plan) {
  plan_ = plan;
  cache_.set_block_size(flags_.engine.scheduler.blocks.block_size);
  cache_.set_dtype(load_request_.kv_cache_dtype());
  cache_.set_num_blocks(plan.num_blocks);
  cache_.set_num_host_blocks(plan.num_host_blocks);
  cache_.set_swap_space_ahead_bytes(SwapSpaceAhead(flags_));
}

// How long workers may take to come. The first workers of a cluster may take any time.
absl::Duration EpochFormer::Patience() const {
  if (flags_.local_workers) {
    return !serves_ ? flags_.register_timeout : std::min(flags_.register_timeout, kRespawnPatience);
  }
  return !serves_ ? kForever : flags_.replacement_timeout;
}

// A worker that does not reply, because the worker hangs or no connection reaches it any more, is lost.
absl::Status EpochFormer::FenceSurvivors() {
  std::vector<std::pair<size_t, WorkerLink>> survivors = pool_.Survivors();
  FailureLatch latch;
  RETURN_IF_ERROR(current_.BeginFence(&latch));
  const std::shared_ptr<GroupEpoch> last = current_.Get();
  loading_ |= last != nullptr && last->reads_weights();
  // Reading a shard is not cut short: the shard would have to be read again.
  const absl::Duration timeout =
      loading_ ? std::max(options_.fence_timeout, options_.speeds->ReadTimeout(options_))
               : options_.fence_timeout;
  const int tries = flags_.local_workers ? 1 : kFenceTries;
  for (int i = 0; i < tries && !survivors.empty(); ++i) {
    if (i > 0) current_.WaitFor(kFenceRetryPause);
    std::vector<WorkerLink> links;
    for (const auto& [rank, link] : survivors) links.push_back(link);
    const auto results = FenceWorkers(links, number_, timeout, &latch);
    if (!latch.status().ok()) break;  // another worker was lost: all calls were cancelled
    std::vector<std::pair<size_t, WorkerLink>> again;
    for (size_t k = 0; k < results.size(); ++k) {
      if (results[k].ok()) continue;
      if (absl::IsUnavailable(results[k].status()) && i + 1 < tries) {
        again.push_back(survivors[k]);
        continue;
      }
      LogWarning("{}{} is replaced: {}", ReplicaPrefix(flags_), links[k].name,
                 std::string(results[k].status().message()));
      pool_.Discard(survivors[k].first, results[k].status());
    }
    survivors = std::move(again);
  }
  RETURN_IF_ERROR(current_.EndFence());
  RETURN_IF_ERROR(latch.status());
  loading_ = false;  // a fenced worker has ended all earlier work
  return absl::OkStatus();
}

absl::Status EpochFormer::LoadWeights(GroupEpoch* epoch, Snapshots* snapshots) {
  const Ranks without =
      RanksWith(*snapshots, [](const v1::WorkerSnapshot& snapshot) { return snapshot.state() == "created"; });
  if (NumIn(without) == 0) return absl::OkStatus();
  v1::LoadModelRequest request = load_request_;
  if (serves_ && !held_.weights.path.empty()) {
    request.set_model_path(held_.weights.path);
    request.set_weights_version(held_.weights.version);
  }
  const bool reads = held_.weights.readable() && !held_.residency.weights_stale();
  if (!reads) {
    request.set_load_format(v1::LOAD_FORMAT_NONE);
    held_.weights.overwritten |= held_.residency.weights_stale();  // no wake-up can read the newcomers'
  }
  // The memory of a group that sleeps may be somebody else's.
  const std::set<std::string>& asleep = held_.residency.asleep();
  request.mutable_asleep_tags()->Add(asleep.begin(), asleep.end());
  request.set_sleep_level(held_.residency.level());
  LoadProgress progress(ReplicaPrefix(flags_));
  loading_ = true;
  ASSIGN_OR_RETURN(
      const std::vector<v1::LoadModelEvent> events,
      epoch->LoadModel(without, request, [&](int64_t done, int64_t total) { progress.Update(done, total); }));
  loading_ = false;
  progress.Finish();
  for (size_t rank = 0; rank < without.size(); ++rank) {
    if (!without[rank]) continue;
    v1::WorkerSnapshot& snapshot = (*snapshots)[rank];
    snapshot.set_checkpoint_fingerprint(events[rank].checkpoint_fingerprint());
    snapshot.set_weights_bytes(events[rank].weights_bytes());
    snapshot.set_kv_block_bytes(events[rank].kv_block_bytes());
    snapshot.set_weights_stale(!reads);
    SetAsGroup(held_.residency, &snapshot);
  }
  return absl::OkStatus();
}

// Hosts with different files at one path never serve together. The fingerprint that the engine knows decides,
// else the ranks that hold weights, else the last epoch, else rank 0. In a recovery the next newcomer may do
// better, unless that newcomer would read the same files.
absl::Status EpochFormer::CheckFingerprints(const GroupEpoch& epoch, const Snapshots& snapshots) {
  const auto held = std::find_if(snapshots.begin(), snapshots.end(), [](const v1::WorkerSnapshot& snapshot) {
    return snapshot.state() != "created";
  });
  if (const std::string expected = held_.weights.files(); serves_ && !expected.empty()) {
    fingerprint_ = expected;
  } else if (held != snapshots.end()) {
    fingerprint_ = held->checkpoint_fingerprint();
  } else if (fingerprint_.empty()) {
    fingerprint_ = snapshots[0].checkpoint_fingerprint();
  }
  absl::Status first;
  for (size_t rank = 0; rank < snapshots.size(); ++rank) {
    const std::string& own = snapshots[rank].checkpoint_fingerprint();
    if (own == fingerprint_) continue;
    const WorkerLink& worker = epoch.workers()[rank];
    const std::string reason = absl::StrCat("--model: ", worker.name, " on ", worker.endpoint.host,
                                            " has read other files than its group (fingerprints ",
                                            own.substr(0, 12), " and ", fingerprint_.substr(0, 12), ")");
    if (!serves_ || flags_.local_workers) return absl::FailedPreconditionError(reason);
    LogWarning("{}{}: it is refused", ReplicaPrefix(flags_), reason);
    refused_newcomer_ = true;
    pool_.Discard(rank, absl::UnavailableError(reason));
    if (first.ok()) first = absl::UnavailableError(reason);
  }
  return first;
}

absl::Status EpochFormer::AllocateCache(GroupEpoch* epoch, Snapshots* snapshots) {
  if (cache_.num_blocks() == 0) RETURN_IF_ERROR(PlanCache(epoch, *snapshots));
  if (held_.num_mapped_blocks == 0) held_.num_mapped_blocks = cache_.num_blocks();
  cache_.set_num_mapped_blocks(held_.num_mapped_blocks);
  const Ranks without =
      RanksWith(*snapshots, [](const v1::WorkerSnapshot& snapshot) { return snapshot.num_blocks() == 0; });
  if (NumIn(without) == 0) return absl::OkStatus();
  const bool defer_graphs = NumIn(without) < without.size() || !held_.residency.asleep().empty();
  RETURN_IF_ERROR(epoch->AllocateKvCache(without, cache_, defer_graphs));
  for (size_t rank = 0; rank < without.size(); ++rank) {
    if (!without[rank]) continue;
    SetAsGroup(held_.residency, &(*snapshots)[rank]);
    (*snapshots)[rank].set_num_mapped_blocks(cache_.num_mapped_blocks());
  }
  return absl::OkStatus();
}

absl::Status EpochFormer::PlanCache(GroupEpoch* epoch, const Snapshots& snapshots) {
  ASSIGN_OR_RETURN(const std::vector<v1::ProfileResponse> profiles, epoch->Profile());
  LogRanks(snapshots, profiles);
  const std::vector<int64_t> kv_block_bytes = KvBlockBytes(snapshots);
  ASSIGN_OR_RETURN(KvPlan plan,
                   PlanBlocks(flags_, epoch->workers()[0].endpoint.device_type, kv_block_bytes, profiles,
                              PlanRequestOf(flags_, load_request_.max_model_len(), attention_reach_)));
  plan.num_host_blocks = HostBlocks(flags_, kv_block_bytes, plan.num_blocks);
  plan.kv_block_bytes = SumBlockBytes(kv_block_bytes);
  SetCache(plan);
  LogInfo("{}KV cache: {} blocks of {} tokens in {}, {} on rank 0", ReplicaPrefix(flags_),
          TotalBlocks(plan_.num_blocks), flags_.engine.scheduler.blocks.block_size,
          KvCacheDTypeName(cache_.dtype()), FormatMib(plan_.num_blocks * kv_block_bytes[0]));
  return absl::OkStatus();
}

void EpochFormer::LogRanks(const Snapshots& snapshots,
                           const std::vector<v1::ProfileResponse>& profiles) const {
  const std::vector<v1::RegisterRequest> members = pool_.Members();
  for (size_t rank = 0; rank < members.size(); ++rank) {
    const v1::RegisterRequest& member = members[rank];
    LogInfo("{}rank {}: {}, pid {}, {}:{} with {}; weights {}, decode graphs {} in {}", ReplicaPrefix(flags_),
            rank, member.host(), member.pid(), DeviceName(member.device_type()), member.device_index(),
            FormatMib(member.device_memory_bytes()), FormatMib(snapshots[rank].weights_bytes()),
            FormatMib(profiles[rank].graph_bytes()),
            absl::FormatDuration(absl::Microseconds(profiles[rank].graph_capture_us())));
  }
}

}  // namespace somnus
