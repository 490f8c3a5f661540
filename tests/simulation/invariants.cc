#include "tests/simulation/invariants.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/memory_tags.h"
#include "base/null_block.h"
#include "worker/worker.h"

namespace somnus::simulation {
namespace {

// A cache may have up to two chunks more than its blocks take in a layer, of a sixteenth of the longest row.
constexpr int64_t kMostSurplus = 2 * 3;  // blocks

int64_t BytesOf(const google::protobuf::Map<std::string, int64_t>& bytes, const std::string& tag) {
  const auto found = bytes.find(tag);
  return found == bytes.end() ? 0 : found->second;
}

bool HasBackup(const v1::WorkerStatusResponse& status) {
  return BytesOf(status.host_bytes_by_tag(), kWeightsTag) + BytesOf(status.file_bytes_by_tag(), kWeightsTag) >
         0;
}

}  // namespace

void Invariants::CheckResidency(bool quiet) {
  EngineStats stats = engine_.Stats();
  if (!IsAtRest(stats)) return;
  GroupBytes bytes;
  const bool swaps = MaySwap(flags_) || CachesOnHost(flags_);
  const bool has_replicas = !stats.replicas.empty();
  int32_t num_members = 0, mapped_blocks = 0;
  for (int replica = 0; replica < flags_.data_parallel_size; ++replica) {
    const std::vector<Member> members =
        Members(replica, has_replicas ? stats.replicas[replica].group_epoch : stats.group_epoch);
    // The engine says how many blocks all replicas together have.
    const int32_t own_blocks = has_replicas && !members.empty()
                                   ? TotalBlocks(members.front().snapshot.num_mapped_blocks())
                                   : stats.mapped_blocks;
    mapped_blocks += own_blocks;
    num_members += static_cast<int32_t>(members.size());
    for (const Member& member : members) {
      for (const auto& [tag, count] : member.status.bytes_by_tag()) bytes.resident[tag] += count;
      for (const auto& [tag, count] : member.status.host_bytes_by_tag()) bytes.host[tag] += count;
      CheckTags(member, stats);
      CheckSize(member, own_blocks);
      CheckDisk(member);
      if (stats.state == EngineState::kAwake && !swaps) CheckHostTier(member);
    }
  }
  if (swaps && stats.state == EngineState::kAwake && !quiet) {
    bytes.host.erase(kKvCacheTag);
    stats.host_bytes.erase(kKvCacheTag);
  }
  if (num_members < flags_.world_size * flags_.data_parallel_size)
    return;  // a loss that the engine has not heard of
  if (mapped_blocks != stats.mapped_blocks)
    world_.Violate(absl::StrCat("the replicas' caches have ", mapped_blocks, " blocks, the engine says ",
                                stats.mapped_blocks));
  if (bytes.resident != stats.resident_bytes || bytes.host != stats.host_bytes)
    world_.Violate("the ranks hold other bytes than the engine says");
}

void Invariants::CheckState() {
  const EngineState state = engine_.state();
  const bool recovered = last_state_ == EngineState::kRecovering;
  last_state_ = state;
  world_.Log(absl::StrCat("the engine is ", EngineStateName(state)));
  if (state == EngineState::kFailed)
    return world_.Violate(absl::StrCat("the engine failed: ", engine_.Stats().error));
  const EngineStats stats = engine_.Stats();
  int64_t version = 0;
  if (!stats.replicas.empty()) {
    for (int replica = 0; replica < flags_.data_parallel_size; ++replica)
      CheckGroup(replica, stats.replicas[replica].state, stats, &version);
    return;
  }
  if (!IsWell(state, 0)) return;
  const bool cache_sleeps = stats.residency.state(kKvCacheTag) != TagState::kResident;
  const bool cache_woke_up = cache_sleeps_ && !cache_sleeps;
  cache_sleeps_ = cache_sleeps;
  const bool holds_nothing = (recovered || cache_woke_up) && stats.used_host_blocks == 0;
  CheckGroup(0, state, stats, &version);
  for (const Member& member : Members(0, executors_[0]->group_epoch())) {
    CheckSize(member, stats.mapped_blocks);
    if (holds_nothing) CheckHostTier(member);
  }
}

// One replica's ranks, which are in `state` by the word of the engine or the replica. Replicas that are awake
// serve the same version of the weights, except while the weights are being changed.
void Invariants::CheckGroup(int replica, EngineState state, const EngineStats& stats, int64_t* version) {
  if (!IsWell(state, replica)) return;
  const bool may_differ = !stats.replicas.empty() && changes_weights_();
  for (const Member& member : Members(replica, executors_[replica]->group_epoch())) {
    if (site_.network.given_up(member.pid)) Violate(member, "is a member of the group that has given it up");
    if (state == EngineState::kAwake && !may_differ) CheckVersion(member, version);
    if (member.status.state() == EngineStateName(state) || MayBeAwake(member, state)) continue;
    Violate(member, absl::StrCat("is ", member.status.state(), " while the engine says that it is ",
                                 EngineStateName(state)));
  }
}

bool Invariants::IsWell(EngineState state, int replica) const {
  return (state == EngineState::kAwake || state == EngineState::kAsleep) &&
         executors_[replica]->Health().ok();
}

bool Invariants::IsAtRest(const EngineStats& stats) const {
  if (stats.replicas.empty()) return IsWell(stats.state, 0);
  for (int replica = 0; replica < flags_.data_parallel_size; ++replica) {
    if (stats.replicas[replica].state != stats.state || !IsWell(stats.state, replica)) return false;
  }
  return true;
}

// The living members of the group; the group has given up the rest, or is about to.
std::vector<Invariants::Member> Invariants::Members(int replica, int64_t epoch) const {
  std::vector<Member> members;
  for (const auto& [pid, process] : site_.workers) {
    if (process.group != first_group_ + replica || !world_.alive(pid)) continue;
    if (process.worker == nullptr || process.worker->group_epoch() != epoch) continue;
    Member member = {pid, process.worker->Snapshot(), process.worker->GetStatus()};
    if (member.status.state() != "failed") members.push_back(std::move(member));
  }
  return members;
}

void Invariants::CheckTags(const Member& member, const EngineStats& stats) {
  std::set<std::string> asleep(kMemoryTags.begin(), kMemoryTags.end());
  for (const std::string& tag : member.snapshot.resident_tags()) asleep.erase(tag);
  const int level = member.snapshot.sleep_level();
  if (stats.residency.state(kWeightsTag) == TagState::kBackedUp && !HasBackup(member.status))
    Violate(member, "sleeps at level 1 without a backup of its weights");
  if (asleep == stats.residency.asleep() && level == stats.residency.level()) return;
  Violate(member,
          absl::StrCat("is asleep at level ", level, " with ", asleep.size(), " tags, the engine at level ",
                       stats.residency.level(), " with ", stats.residency.asleep().size()));
}

// Weights that are replaced or stale are mapped, and so is memory that has not been checked.
bool Invariants::MayBeAwake(const Member& member, EngineState state) const {
  if (state != EngineState::kAsleep) return false;
  return flags_.engine.wake_self_check || changes_weights_() || member.snapshot.weights_stale();
}

// All ranks that serve together have the same weights.
void Invariants::CheckVersion(const Member& member, int64_t* common) {
  const int64_t version = member.status.weights_version();
  if (*common == 0) *common = version;
  if (version > 0 && *common == version) return;
  Violate(member, absl::StrCat("serves version ", version, " of the weights, another one ", *common));
}

// Every rank's cache has the blocks that the engine gives out, in the rank's report and in the rank's memory.
void Invariants::CheckSize(const Member& member, int32_t mapped_blocks) {
  const int32_t own = member.snapshot.num_mapped_blocks();
  if (TotalBlocks(own) != mapped_blocks) {
    return Violate(member, absl::StrCat("has a cache of ", TotalBlocks(own), " blocks, the engine says ",
                                        mapped_blocks));
  }
  const int64_t block_bytes = member.snapshot.kv_block_bytes();
  if (member.snapshot.num_blocks() * block_bytes > flags_.kv_cache_memory_bytes) {
    return Violate(member,
                   absl::StrCat("has a cache for ", member.snapshot.num_blocks(), " blocks of ", block_bytes,
                                " bytes, more than ", flags_.kv_cache_memory_bytes, " bytes"));
  }
  const auto& resident = member.snapshot.resident_tags();
  const bool is_mapped = std::find(resident.begin(), resident.end(), kKvCacheTag) != resident.end();
  const int64_t bytes = BytesOf(member.status.bytes_by_tag(), kKvCacheTag);
  const int64_t wanted = is_mapped ? own * block_bytes : 0;
  const bool too_many =
      bytes > wanted + (is_mapped ? kMostSurplus * block_bytes : 0) && !faults_.memory_fails();
  if (bytes < wanted || too_many)
    Violate(member, absl::StrCat("has ", bytes, " bytes of memory for ", own, " blocks"));
}

// Of blocks that nobody keeps no memory is held, but for later swaps of an engine that stays awake.
void Invariants::CheckHostTier(const Member& member) {
  if (flags_.backup == v1::BACKUP_POLICY_RETAIN || faults_.memory_fails()) return;
  const int64_t bytes = BytesOf(member.status.host_bytes_by_tag(), kKvCacheTag);
  if (bytes != 0) Violate(member, absl::StrCat("holds ", bytes, " bytes for blocks that nobody keeps"));
}

// A file has the space of the backups within, in whole pages, and no more.
void Invariants::CheckDisk(const Member& member) {
  if (!site_.spills) return;
  int64_t backups = 0;
  for (const auto& [tag, bytes] : member.status.file_bytes_by_tag())
    backups += (bytes + Disk::kPageBytes - 1) / Disk::kPageBytes * Disk::kPageBytes;
  const int64_t used = site_.disk.UsedBytes(member.pid);
  // For a rank that joined a sleeping group the checkpoint is the backup.
  if (used == 0 && member.status.state() == "asleep") return;
  if (used != backups)
    Violate(member, absl::StrCat("has ", used, " bytes of the disk for backups of ", backups));
}

void Invariants::Violate(const Member& member, const std::string& what) {
  world_.Violate(absl::StrCat(world_.name(member.pid), " ", what));
}

}  // namespace somnus::simulation
