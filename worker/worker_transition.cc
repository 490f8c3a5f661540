// The Worker's transitions: sleep and wake-up, in two phases.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/memory_shortage.h"
#include "base/memory_tags.h"
#include "base/monotonic.h"
#include "base/request_bounds.h"
#include "base/status_macros.h"
#include "proto/missing_memory.h"
#include "worker/worker.h"

namespace somnus {
namespace {

double SecondsSince(MonotonicTime begin) { return absl::ToDoubleSeconds(MonotonicNow() - begin); }

template <typename Tags>
bool Has(const Tags& tags, const std::string& tag) {
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

absl::Status NoSourceOfWeights() {
  return absl::FailedPreconditionError(
      "weights: they are stale, and no checkpoint has them: somnus reload-weights or an update has to bring "
      "them");
}

// With what the memory of this rank lacked, as the coordinator reads it.
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

absl::StatusOr<v1::PlanResponse> Worker::Plan(const v1::PlanRequest& request) {
  using Response = absl::StatusOr<v1::PlanResponse>;
  return InEpoch<Response>(request.group_epoch(), [&]() -> Response {
    ASSIGN_OR_RETURN(v1::PlanResponse plan, DoPlan(request.transition()));
    plan.set_copy_bytes(plan.copy_bytes() + kv_host_tier_->CopyBytes(request.transition()));
    return plan;
  });
}

absl::Status Worker::Prepare(const v1::PrepareRequest& request) {
  return InEpoch<absl::Status>(request.group_epoch(),
                               [&] { return OfRank(communicator_.rank(), DoPrepare(request)); });
}

absl::StatusOr<v1::CommitResponse> Worker::Commit(const v1::CommitRequest& request) {
  return InEpoch<absl::StatusOr<v1::CommitResponse>>(request.group_epoch(),
                                                     [&] { return DoCommit(request.transition_id()); });
}

absl::Status Worker::AbortTransition(const v1::AbortRequest& request) {
  return InEpoch<absl::Status>(request.group_epoch(), [&] { return DoAbort(request.transition_id()); });
}

absl::StatusOr<std::vector<std::string>> Worker::TagsToChange(const v1::Transition& transition) const {
  const int level = transition.sleep_level();
  if (level < 0 || level > kMaxSleepLevel)
    return absl::InvalidArgumentError(absl::StrCat("sleep_level: ", level, " is out of range"));
  const std::map<std::string, TagStats> stats = allocator_->Stats();
  for (const std::string& tag : transition.tags()) {
    if (stats.count(tag) == 0)
      return absl::InvalidArgumentError(absl::StrCat("tags: there is no '", tag, "'"));
  }
  std::vector<std::string> tags;
  for (const auto& [tag, bytes] : stats) {
    if (transition.tags_size() > 0 && !Has(transition.tags(), tag)) continue;
    const bool asleep = bytes.sleeping > 0;
    if (level == 0 && !asleep && tag == kWeightsTag && weights_.stale() && !transition.skip_weights_load()) {
      if (!weights_.in_checkpoint()) return NoSourceOfWeights();
      tags.push_back(tag);
    }
    const bool deepens = asleep && level == kMaxSleepLevel && tag == kWeightsTag && !weights_.discarded();
    if (level == 0 ? asleep : !asleep || deepens) tags.push_back(tag);
  }
  return tags;
}

absl::StatusOr<v1::PlanResponse> Worker::DoPlan(const v1::Transition& transition) {
  RETURN_IF_ERROR(lifecycle_.Require({WorkerState::kAwake, WorkerState::kAsleep}, "Plan"));
  ASSIGN_OR_RETURN(const std::vector<std::string> tags, TagsToChange(transition));
  v1::PlanResponse plan;
  if (tags.empty()) return plan;
  const TagStats weights = allocator_->Stats()[kWeightsTag];
  if (transition.sleep_level() > 0) {
    for (const auto& [tag, stats] : allocator_->Stats()) {
      if (Has(tags, tag)) (*plan.mutable_release_bytes_by_tag())[tag] = stats.resident;
    }
    const bool saves = transition.sleep_level() == 1 && Has(tags, kWeightsTag) && !weights_.stale() &&
                       !CheckpointBacksUp() && weights.host_backup + weights.file_backup == 0;
    plan.set_copy_bytes(saves ? weights.resident : 0);
    return plan;
  }
  ASSIGN_OR_RETURN(const WakeNeed need, allocator_->CheckWake(tags));
  plan.mutable_map_bytes_by_tag()->insert(need.needed.begin(), need.needed.end());
  plan.set_available_bytes(need.available);
  if (parts_.memory_pool) plan.set_memory_pool(parts_.memory_pool(device_->kind(), options_.device_index));
  plan.set_copy_bytes(Has(tags, kWeightsTag) ? weights.host_backup + weights.file_backup : 0);
  plan.set_reads_weights(Has(tags, kWeightsTag) && ReadsWeights(transition));
  return plan;
}

// Whether a wake-up that has weights among its tags reads them from their source. A backup is restored in any
// case.
bool Worker::ReadsWeights(const v1::Transition& wake) const {
  if (checkpoint_backup_.in_use()) return true;
  return (weights_.discarded() || weights_.stale()) && weights_.in_checkpoint() && !wake.skip_weights_load();
}

absl::Status Worker::DoPrepare(const v1::PrepareRequest& request) {
  RETURN_IF_ERROR(lifecycle_.Require({WorkerState::kAwake, WorkerState::kAsleep}, "Prepare"));
  const uint64_t id = request.operation_id();
  if (id <= last_transition_) {
    return absl::FailedPreconditionError(
        absl::StrCat("Prepare: transition ", id, " comes too late, ", last_transition_, " has ended"));
  }
  if (prepared_.has_value())
    return absl::FailedPreconditionError(absl::StrCat("Prepare: ", prepared_->id, " is prepared already"));
  // Another rank's call may wait for the CPU that this thread would be bound to.
  device_->UnpinCaller();
  Prepared prepared;
  prepared.id = id;
  prepared.sleep_level = request.transition().sleep_level();
  prepared.reads_weights = prepared.sleep_level == 0 && ReadsWeights(request.transition());
  ASSIGN_OR_RETURN(prepared.tags, TagsToChange(request.transition()));
  prepared.checkpoint_backs_up = prepared.sleep_level > 0 && prepared.sleep_level < kMaxSleepLevel &&
                                 Has(prepared.tags, kWeightsTag) && CheckpointBacksUp();
  const MonotonicTime begin = MonotonicNow();
  BeginMeter(request.transition(), prepared);
  absl::Status status = prepared.sleep_level > 0 ? PrepareSleep(&prepared) : PrepareWake(&prepared);
  if (status.ok()) status = PrepareKept(request.transition(), prepared);
  transition_meter_.SetPhase(status.ok() ? TransitionPhase::kPrepared : TransitionPhase::kAborted);
  RETURN_IF_ERROR(status);
  prepared.seconds.set_prepare(SecondsSince(begin));
  prepared_ = std::move(prepared);
  return absl::OkStatus();
}

void Worker::BeginMeter(const v1::Transition& transition, const Prepared& prepared) {
  const bool wakes_up = prepared.sleep_level == 0;
  int64_t moved = kv_host_tier_->CopyBytes(transition), read = 0;
  if (!prepared.tags.empty())
    moved += wakes_up ? allocator_->WakeBytes(prepared.tags) : allocator_->SleepBytes(SleepModes(prepared));
  if (Has(prepared.tags, kWeightsTag) && prepared.reads_weights) {
    const TagStats weights = allocator_->Stats()[kWeightsTag];
    read = std::max(weights.sleeping, weights.resident);  // stale ones are mapped
  }
  transition_meter_.Begin(prepared.id, wakes_up, moved, read);
}

std::map<std::string, RestoreMode> Worker::SleepModes(const Prepared& prepared) const {
  std::map<std::string, RestoreMode> modes;
  for (const std::string& tag : prepared.tags) {
    // Stale weights are not worth a copy.
    const bool saves = tag == kWeightsTag && prepared.sleep_level < kMaxSleepLevel && !weights_.stale();
    modes[tag] = saves && !prepared.checkpoint_backs_up ? RestoreMode::kBackup : RestoreMode::kDiscard;
  }
  return modes;
}

absl::Status Worker::PrepareSleep(Prepared* prepared) {
  RETURN_IF_ERROR(device_->Synchronize());  // nothing may run on memory that is released
  RETURN_IF_ERROR(SuspendGroup());          // before what can fail on one rank alone
  if (prepared->tags.empty()) return absl::OkStatus();
  const MeterScope counted(driver_.get(), transition_meter_.bytes());
  return allocator_->PrepareSleep(SleepModes(*prepared));
}

// All ranks suspend together, and resume together at their next step. After a recovery some ranks may sleep
// already, and get no call, when others are put to sleep: those must not wait for them.
absl::Status Worker::SuspendGroup() {
  if (!communicator_.joined() || ranks_may_differ_) return absl::OkStatus();
  const absl::Status status = communicator_.Suspend();
  return status.ok() ? status : Fail(epoch_, status);
}

absl::Status Worker::PrepareWake(Prepared* prepared) {
  if (prepared->tags.empty()) return absl::OkStatus();
  prefetch_.reset();  // whoever reads them now needs the disk
  RETURN_IF_ERROR(MapMemory(prepared->tags));
  const absl::Status status = FillMapped(prepared);
  if (!status.ok()) allocator_->AbortWake();
  return status;
}

absl::Status Worker::MapMemory(const std::vector<std::string>& tags) {
  const MeterScope counted(driver_.get(), transition_meter_.bytes());
  return allocator_->PrepareWake(tags);
}

// Restores what mapping alone does not: weights that are read from their source, and the runner's state once
// every tag is resident.
absl::Status Worker::FillMapped(Prepared* prepared) {
  if (Has(prepared->tags, kWeightsTag) && prepared->reads_weights) {
    RETURN_IF_ERROR(fence_.Check(epoch_));  // nobody waits for the weights of an older epoch
    const MonotonicTime begin = MonotonicNow();
    transition_meter_.SetPhase(TransitionPhase::kRead);
    ASSIGN_OR_RETURN(prepared->source, ReadSource());
    prepared->seconds.set_read(SecondsSince(begin));
  }
  for (const auto& [tag, bytes] : allocator_->Stats()) {
    if (bytes.sleeping > 0 && !Has(prepared->tags, tag)) return absl::OkStatus();
  }
  return runner_->ResetAfterWake();
}

absl::StatusOr<v1::CommitResponse> Worker::DoCommit(uint64_t id) {
  if (!prepared_.has_value() || prepared_->id != id)
    return absl::FailedPreconditionError(absl::StrCat("Commit: transition ", id, " is not prepared"));
  const MonotonicTime begin = MonotonicNow();
  v1::CommitResponse response;
  *response.mutable_seconds() = prepared_->seconds;
  if (!prepared_->tags.empty()) {
    if (prepared_->sleep_level > 0) {
      CommitSleep(&response);
    } else {
      CommitWake(&response);
    }
  }
  const std::map<std::string, TagStats> stats = allocator_->Stats();
  for (const auto& [tag, bytes] : stats) {
    v1::TagReport& report = (*response.mutable_tags())[tag];
    report.set_resident_bytes(bytes.resident);
    const int64_t file_bytes = bytes.file_backup + (tag == kWeightsTag ? checkpoint_backup_.bytes() : 0);
    report.set_backed_up_bytes(bytes.sleeping > 0 ? bytes.host_backup + file_bytes : 0);
    report.set_host_bytes(bytes.host_backup);
    report.set_file_bytes(file_bytes);
    report.set_sleeping_bytes(bytes.sleeping);
  }
  CommitKept(*prepared_, &response);
  SetRestingState();
  transition_meter_.SetPhase(TransitionPhase::kCommitted);
  last_transition_ = last_committed_ = id;
  prepared_.reset();
  response.mutable_seconds()->set_commit(SecondsSince(begin));
  return response;
}

void Worker::SetRestingState() {
  const std::map<std::string, TagStats> stats = allocator_->Stats();
  const bool asleep =
      std::any_of(stats.begin(), stats.end(), [](const auto& tag) { return tag.second.sleeping > 0; });
  const int level = weights_.discarded() ? kMaxSleepLevel : kMinSleepLevel;
  lifecycle_.Set(asleep ? WorkerState::kAsleep : WorkerState::kAwake, asleep ? level : 0);
}

void Worker::CommitSleep(v1::CommitResponse* response) {
  transition_meter_.SetPhase(TransitionPhase::kRelease);
  const SleepReport report = ReleaseMemory();
  for (const auto& [tag, bytes] : report.tags) {
    (*response->mutable_tags())[tag].set_freed_bytes(bytes.freed);
    (*response->mutable_tags())[tag].set_discarded_bytes(bytes.discarded);
  }
  response->mutable_seconds()->set_copy(report.backup_seconds);
  response->mutable_seconds()->set_release(report.release_seconds);
  if (!Has(prepared_->tags, kWeightsTag)) return;
  update_.reset();
  CommitCheckpointBackup(&(*response->mutable_tags())[kWeightsTag]);
  if (prepared_->sleep_level == kMaxSleepLevel || weights_.stale()) weights_.SetDiscarded();
}

SleepReport Worker::ReleaseMemory() {
  const MeterScope counted(driver_.get(), transition_meter_.bytes());
  return allocator_->CommitSleep();
}

void Worker::CommitWake(v1::CommitResponse* response) {
  const WakeReport report = allocator_->CommitWake();
  for (const auto& [tag, bytes] : report.tags)
    (*response->mutable_tags())[tag].set_mapped_bytes(bytes.mapped);
  response->mutable_seconds()->set_map(report.map_seconds);
  response->mutable_seconds()->set_copy(report.restore_seconds);
  if (!Has(prepared_->tags, kWeightsTag)) return;
  checkpoint_backup_.End();
  if (prepared_->reads_weights) {
    SetRead(weights_.source_version(), prepared_->source);
  } else if (weights_.discarded()) {
    weights_.SetUnread();
  }
}

absl::Status Worker::DoAbort(uint64_t id) {
  if (id == last_committed_)
    return absl::FailedPreconditionError(absl::StrCat("Abort: transition ", id, " was committed"));
  if (prepared_.has_value() && prepared_->id == id) AbortPrepared();
  last_transition_ = std::max(last_transition_, id);  // a Prepare that comes later is refused
  return absl::OkStatus();
}

void Worker::AbortMemory(int sleep_level) {
  if (sleep_level > 0) {
    allocator_->AbortSleep();
  } else {
    allocator_->AbortWake();
  }
}

void Worker::AbortPrepared() {
  if (!prepared_.has_value()) return;
  AbortMemory(prepared_->sleep_level);
  kv_host_tier_->Abort();
  kv_host_bytes_ = kv_host_tier_->host_bytes();
  prepared_.reset();
  transition_meter_.SetPhase(TransitionPhase::kAborted);
}

}  // namespace somnus
