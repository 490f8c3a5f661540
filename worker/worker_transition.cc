#include "worker/worker_transition.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/memory_shortage.h"
#include "base/memory_tags.h"
#include "base/monotonic.h"
#include "base/request_bounds.h"
#include "base/status_macros.h"
#include "proto/missing_memory.h"

namespace somnus {
namespace {

double SecondsSince(MonotonicTime begin) { return absl::ToDoubleSeconds(MonotonicNow() - begin); }

template <typename Tags>
bool Has(const Tags& tags, const std::string& tag) {
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

// Adds the memory that this rank lacked, as the coordinator reads it.
absl::Status OfRank(int rank, const absl::Status& status) {
  if (status.ok()) return status;
  v1::MissingMemory missing;
  for (const MemoryShortage& lacked : ShortagesOf(status)) {
    v1::MissingMemory::Shortage* shortage = missing.add_shortages();
    shortage->set_rank(rank);
    shortage->set_tag(lacked.tag);
    shortage->set_needed_bytes(lacked.needed_bytes);
    shortage->set_missing_bytes(lacked.missing_bytes);
    shortage->set_memory(MemoryKindName(lacked.memory));
  }
  return WithMissing(status, missing);
}

}  // namespace

absl::StatusOr<v1::PlanResponse> WorkerTransition::Plan(const v1::Transition& transition) const {
  RETURN_IF_ERROR(epoch_.lifecycle()->Require({WorkerState::kAwake, WorkerState::kAsleep}, "Plan"));
  ASSIGN_OR_RETURN(v1::PlanResponse plan, PlanMemory(transition));
  plan.set_copy_bytes(plan.copy_bytes() + cache_.CopyBytes(transition));
  return plan;
}

absl::StatusOr<v1::PlanResponse> WorkerTransition::PlanMemory(const v1::Transition& transition) const {
  ASSIGN_OR_RETURN(const std::vector<std::string> tags, TagsToChange(transition));
  v1::PlanResponse plan;
  if (tags.empty()) return plan;
  SleepableAllocator* const allocator = load_.allocator();
  const TagStats weights = allocator->Stats()[kWeightsTag];
  if (transition.sleep_level() != kAwakeLevel) {
    for (const auto& [tag, stats] : allocator->Stats()) {
      if (Has(tags, tag)) (*plan.mutable_release_bytes_by_tag())[tag] = stats.resident;
    }
    const bool saves = transition.sleep_level() < kMaxSleepLevel && Has(tags, kWeightsTag) &&
                       !weights_.record().stale() && !weights_.CheckpointBacksUp() &&
                       weights.host_backup + weights.file_backup == 0;
    plan.set_copy_bytes(saves ? weights.resident : 0);
    return plan;
  }
  ASSIGN_OR_RETURN(const WakeNeed need, allocator->CheckWake(tags));
  plan.mutable_map_bytes_by_tag()->insert(need.needed.begin(), need.needed.end());
  plan.set_available_bytes(need.available);
  plan.set_memory_pool(load_.MemoryPool());
  plan.set_copy_bytes(Has(tags, kWeightsTag) ? weights.host_backup + weights.file_backup : 0);
  plan.set_reads_weights(Has(tags, kWeightsTag) && weights_.WakeReads(transition.skip_weights_load()));
  return plan;
}

absl::StatusOr<std::vector<std::string>> WorkerTransition::TagsToChange(
    const v1::Transition& transition) const {
  const int level = transition.sleep_level();
  if (level != kAwakeLevel && (level < kMinSleepLevel || level > kMaxSleepLevel))
    return absl::InvalidArgumentError(absl::StrCat("sleep_level: ", level, " is out of range"));
  const bool wakes_up = level == kAwakeLevel;
  const std::map<std::string, TagStats> stats = load_.allocator()->Stats();
  for (const std::string& tag : transition.tags()) {
    if (stats.count(tag) == 0)
      return absl::InvalidArgumentError(absl::StrCat("tags: there is no '", tag, "'"));
  }
  std::vector<std::string> tags;
  for (const auto& [tag, bytes] : stats) {
    if (transition.tags_size() > 0 && !Has(transition.tags(), tag)) continue;
    const bool is_weights = tag == kWeightsTag, asleep = bytes.sleeping > 0;
    if (wakes_up && !asleep && is_weights && weights_.record().stale() && !transition.skip_weights_load()) {
      RETURN_IF_ERROR(weights_.RequireSource());
      tags.push_back(tag);
    }
    const bool deepens = asleep && level == kMaxSleepLevel && is_weights && !weights_.record().discarded();
    if (wakes_up ? asleep : !asleep || deepens) tags.push_back(tag);
  }
  return tags;
}

absl::Status WorkerTransition::Prepare(const v1::PrepareRequest& request) {
  return OfRank(epoch_.communicator()->rank(), DoPrepare(request));
}

absl::Status WorkerTransition::DoPrepare(const v1::PrepareRequest& request) {
  RETURN_IF_ERROR(epoch_.lifecycle()->Require({WorkerState::kAwake, WorkerState::kAsleep}, "Prepare"));
  const v1::Transition& transition = request.transition();
  const uint64_t id = request.operation_id();
  if (id <= last_ended_) {
    return absl::FailedPreconditionError(
        absl::StrCat("Prepare: transition ", id, " comes too late, ", last_ended_, " has ended"));
  }
  if (prepared_.has_value())
    return absl::FailedPreconditionError(absl::StrCat("Prepare: ", prepared_->id, " is prepared already"));
  // Another rank's call may wait for the CPU that this thread would be bound to.
  load_.device()->UnpinCaller();
  Prepared prepared;
  prepared.id = id;
  prepared.sleep_level = transition.sleep_level();
  const bool sleeps = !prepared.wakes_up();
  prepared.reads_weights = !sleeps && weights_.WakeReads(transition.skip_weights_load());
  ASSIGN_OR_RETURN(prepared.tags, TagsToChange(transition));
  prepared.checkpoint_backs_up = sleeps && prepared.sleep_level < kMaxSleepLevel &&
                                 Has(prepared.tags, kWeightsTag) && weights_.CheckpointBacksUp();
  const MonotonicTime begin = MonotonicNow();
  BeginMeter(transition, prepared);
  absl::Status status = sleeps ? PrepareSleep(prepared) : PrepareWake(&prepared);
  if (status.ok()) {
    status = cache_.PrepareKept(transition, prepared.tags);
    if (!status.ok() && !prepared.tags.empty()) AbortMemory(prepared.sleep_level);
  }
  meter_.SetPhase(status.ok() ? TransitionPhase::kPrepared : TransitionPhase::kAborted);
  RETURN_IF_ERROR(status);
  prepared.seconds.set_prepare(SecondsSince(begin));
  SetPrepared(std::move(prepared));
  return absl::OkStatus();
}

void WorkerTransition::BeginMeter(const v1::Transition& transition, const Prepared& prepared) {
  const bool wakes_up = prepared.wakes_up();
  SleepableAllocator* const allocator = load_.allocator();
  int64_t moved = cache_.CopyBytes(transition), read = 0;
  if (!prepared.tags.empty())
    moved += wakes_up ? allocator->WakeBytes(prepared.tags) : allocator->SleepBytes(SleepModes(prepared));
  if (Has(prepared.tags, kWeightsTag) && prepared.reads_weights) {
    const TagStats weights = allocator->Stats()[kWeightsTag];
    read = std::max(weights.sleeping, weights.resident);  // stale weights are mapped
  }
  meter_.Begin(prepared.id, wakes_up, moved, read);
}

std::map<std::string, RestoreMode> WorkerTransition::SleepModes(const Prepared& prepared) const {
  std::map<std::string, RestoreMode> modes;
  for (const std::string& tag : prepared.tags) {
    // Stale weights are not worth a copy.
    const bool saves =
        tag == kWeightsTag && prepared.sleep_level < kMaxSleepLevel && !weights_.record().stale();
    modes[tag] = saves && !prepared.checkpoint_backs_up ? RestoreMode::kBackup : RestoreMode::kDiscard;
  }
  return modes;
}

absl::Status WorkerTransition::PrepareSleep(const Prepared& prepared) {
  RETURN_IF_ERROR(load_.device()->Synchronize());  // nothing may run on memory that is released
  RETURN_IF_ERROR(epoch_.Suspend());               // before what can fail on one rank alone
  if (prepared.tags.empty()) return absl::OkStatus();
  const MeterScope counted(load_.driver(), meter_.bytes());
  return load_.allocator()->PrepareSleep(SleepModes(prepared));
}

absl::Status WorkerTransition::PrepareWake(Prepared* prepared) {
  if (prepared->tags.empty()) return absl::OkStatus();
  weights_.EndPrefetch();  // the reader of the weights needs the disk now
  {
    const MeterScope counted(load_.driver(), meter_.bytes());
    RETURN_IF_ERROR(load_.allocator()->PrepareWake(prepared->tags));
  }
  const absl::Status status = FillMapped(prepared);
  if (!status.ok()) load_.allocator()->AbortWake();
  return status;
}

// Restores the contents that mapping alone does not: weights that are read from their source, and the
// runner's state once every tag is resident.
absl::Status WorkerTransition::FillMapped(Prepared* prepared) {
  if (Has(prepared->tags, kWeightsTag) && prepared->reads_weights) {
    RETURN_IF_ERROR(epoch_.CheckCurrent());  // nobody waits for the weights of an older epoch
    const MonotonicTime begin = MonotonicNow();
    meter_.SetPhase(TransitionPhase::kRead);
    ASSIGN_OR_RETURN(prepared->source, weights_.ReadSource([this](int64_t loaded, int64_t total) {
      meter_.NoteRead(loaded, total);
    }));
    prepared->seconds.set_read(SecondsSince(begin));
  }
  for (const auto& [tag, bytes] : load_.allocator()->Stats()) {
    if (bytes.sleeping > 0 && !Has(prepared->tags, tag)) return absl::OkStatus();
  }
  return load_.runner()->ResetAfterWake();
}

absl::StatusOr<v1::CommitResponse> WorkerTransition::Commit(uint64_t id) {
  if (!prepared_.has_value() || prepared_->id != id)
    return absl::FailedPreconditionError(absl::StrCat("Commit: transition ", id, " is not prepared"));
  const MonotonicTime begin = MonotonicNow();
  v1::CommitResponse response;
  *response.mutable_seconds() = prepared_->seconds;
  if (!prepared_->tags.empty()) {
    if (!prepared_->wakes_up()) {
      CommitSleep(&response);
    } else {
      CommitWake(&response);
    }
  }
  ReportTags(&response);
  cache_.CommitKept(prepared_->sleep_level, prepared_->tags, &response);
  SetRestingState();
  meter_.SetPhase(TransitionPhase::kCommitted);
  last_ended_ = last_committed_ = id;
  SetPrepared(std::nullopt);
  response.mutable_seconds()->set_commit(SecondsSince(begin));
  return response;
}

void WorkerTransition::CommitSleep(v1::CommitResponse* response) {
  meter_.SetPhase(TransitionPhase::kRelease);
  SleepReport report;
  {
    const MeterScope counted(load_.driver(), meter_.bytes());
    report = load_.allocator()->CommitSleep();
  }
  for (const auto& [tag, bytes] : report.tags) {
    (*response->mutable_tags())[tag].set_freed_bytes(bytes.freed);
    (*response->mutable_tags())[tag].set_discarded_bytes(bytes.discarded);
  }
  response->mutable_seconds()->set_copy(report.backup_seconds);
  response->mutable_seconds()->set_release(report.release_seconds);
  if (!Has(prepared_->tags, kWeightsTag)) return;
  weights_.CommitSleep(prepared_->sleep_level, prepared_->checkpoint_backs_up,
                       &(*response->mutable_tags())[kWeightsTag]);
}

void WorkerTransition::CommitWake(v1::CommitResponse* response) {
  const WakeReport report = load_.allocator()->CommitWake();
  for (const auto& [tag, bytes] : report.tags)
    (*response->mutable_tags())[tag].set_mapped_bytes(bytes.mapped);
  response->mutable_seconds()->set_map(report.map_seconds);
  response->mutable_seconds()->set_copy(report.restore_seconds);
  if (Has(prepared_->tags, kWeightsTag))
    weights_.CommitWake(prepared_->reads_weights ? &prepared_->source : nullptr);
}

void WorkerTransition::ReportTags(v1::CommitResponse* response) const {
  for (const auto& [tag, bytes] : load_.allocator()->Stats()) {
    v1::TagReport& report = (*response->mutable_tags())[tag];
    report.set_resident_bytes(bytes.resident);
    const int64_t file_bytes = bytes.file_backup + (tag == kWeightsTag ? weights_.backup_bytes() : 0);
    report.set_backed_up_bytes(bytes.sleeping > 0 ? bytes.host_backup + file_bytes : 0);
    report.set_host_bytes(bytes.host_backup + load_.HostBytes(tag));
    report.set_file_bytes(file_bytes);
    report.set_sleeping_bytes(bytes.sleeping);
  }
}

void WorkerTransition::SetRestingState() {
  const std::map<std::string, TagStats> stats = load_.allocator()->Stats();
  const bool asleep =
      std::any_of(stats.begin(), stats.end(), [](const auto& tag) { return tag.second.sleeping > 0; });
  const int level = weights_.record().discarded() ? kMaxSleepLevel : kMinSleepLevel;
  epoch_.lifecycle()->Set(asleep ? WorkerState::kAsleep : WorkerState::kAwake, asleep ? level : kAwakeLevel);
}

absl::Status WorkerTransition::Abort(uint64_t id) {
  if (id == last_committed_)
    return absl::FailedPreconditionError(absl::StrCat("Abort: transition ", id, " was committed"));
  if (prepared_.has_value() && prepared_->id == id) AbortPrepared();
  last_ended_ = std::max(last_ended_, id);  // a Prepare that comes later is refused
  return absl::OkStatus();
}

void WorkerTransition::AbortMemory(int sleep_level) {
  if (sleep_level != kAwakeLevel) {
    load_.allocator()->AbortSleep();
  } else {
    load_.allocator()->AbortWake();
  }
}

void WorkerTransition::AbortPrepared() {
  if (!prepared_.has_value()) return;
  AbortMemory(prepared_->sleep_level);
  cache_.AbortKept();
  SetPrepared(std::nullopt);
  meter_.SetPhase(TransitionPhase::kAborted);
}

void WorkerTransition::BeginEpoch() {
  AbortPrepared();
  last_ended_ = last_committed_ = 0;
  meter_.Forget();
}

void WorkerTransition::SetPrepared(std::optional<Prepared> prepared) {
  prepared_ = std::move(prepared);
  epoch_.lifecycle()->SetTransitionPrepared(prepared_.has_value());
}

}  // namespace somnus
