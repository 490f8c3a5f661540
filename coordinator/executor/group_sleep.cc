#include "coordinator/executor/group_sleep.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/memory_tags.h"
#include "base/request_bounds.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

using Stub = CollectiveCalls::Stub;

v1::Transition ToTransition(int sleep_level, const std::vector<std::string>& tags,
                            const HostTierBlocks& host = {}) {
  v1::Transition transition;
  transition.set_sleep_level(sleep_level);
  transition.mutable_tags()->Add(tags.begin(), tags.end());
  for (const KeptBlock& block : host.kept) {
    v1::BlockCopy* copy = transition.add_kept_blocks();
    copy->set_src(block.device_block);
    copy->set_dst(block.host_block);
  }
  transition.mutable_swapped_blocks()->Add(host.swapped.begin(), host.swapped.end());
  return transition;
}

v1::Transition WakeTransition(const std::vector<std::string>& tags, bool reads_weights,
                              const HostTierBlocks& host = {}) {
  v1::Transition transition = ToTransition(kAwakeLevel, tags, host);
  transition.set_skip_weights_load(!reads_weights);
  return transition;
}

template <typename Bytes>
int64_t SumOf(const Bytes& bytes_by_tag) {
  int64_t sum = 0;
  for (const auto& [tag, bytes] : bytes_by_tag) sum += bytes;
  return sum;
}

// Ranks with the same name share memory: ranks of one host and pool, or of one GPU. A GPU without a name is a
// rank's own. Workers with Unix sockets are on the coordinator's own host, whatever name the workers give.
std::string MemoryOf(const WorkerLink& worker, const v1::PlanResponse& plan) {
  const bool on_gpu = worker.endpoint.device_type == v1::DEVICE_TYPE_CUDA;
  if (on_gpu && plan.memory_pool().empty()) return worker.name;
  const bool is_local = absl::StartsWith(worker.endpoint.address, "unix:");
  return absl::StrCat(is_local ? "this host" : worker.endpoint.host, on_gpu ? " GPU " : " ",
                      plan.memory_pool());
}

RankReport ToReport(size_t rank, const v1::CommitResponse& response) {
  RankReport report;
  report.rank = static_cast<int>(rank);
  for (const auto& [tag, bytes] : response.tags()) {
    report.tags[tag] = {.freed_bytes = bytes.freed_bytes(),
                        .backed_up_bytes = bytes.backed_up_bytes(),
                        .discarded_bytes = bytes.discarded_bytes(),
                        .mapped_bytes = bytes.mapped_bytes(),
                        .resident_bytes = bytes.resident_bytes(),
                        .host_bytes = bytes.host_bytes(),
                        .file_bytes = bytes.file_bytes(),
                        .sleeping_bytes = bytes.sleeping_bytes()};
  }
  const v1::PhaseSeconds& seconds = response.seconds();
  report.seconds = {.prepare = seconds.prepare(),
                    .commit = seconds.commit(),
                    .copy = seconds.copy(),
                    .map = seconds.map(),
                    .release = seconds.release(),
                    .read = seconds.read()};
  return report;
}

// The ranks that have a transition.
Ranks RanksOf(const std::vector<std::optional<v1::Transition>>& transitions) {
  Ranks ranks;
  for (const auto& transition : transitions) ranks.push_back(transition.has_value());
  return ranks;
}

}  // namespace

absl::StatusOr<TransitionReport> GroupSleep::Sleep(const SleepSpec& spec, const HostTierBlocks& host,
                                                   std::atomic<bool>* committed) {
  return Run(Transitions(workers_.size(), ToTransition(spec.level, spec.tags, host)), committed);
}

absl::StatusOr<TransitionReport> GroupSleep::WakeUp(const std::vector<std::string>& tags, bool reads_weights,
                                                    const HostTierBlocks& host,
                                                    std::atomic<bool>* committed) {
  return Run(Transitions(workers_.size(), WakeTransition(tags, reads_weights, host)), committed);
}

absl::StatusOr<std::vector<RankNeed>> GroupSleep::PlanWakeUp(const std::vector<std::string>& tags) const {
  ASSIGN_OR_RETURN(const Plans plans,
                   Plan(Transitions(workers_.size(), WakeTransition(tags, /*reads_weights=*/true))));
  return NeedsOf(plans);
}

absl::Status GroupSleep::SetResidency(const std::vector<v1::WorkerSnapshot>& snapshots,
                                      const Residency& held) {
  Transitions sleep(workers_.size()), wake(workers_.size());
  const bool discards = held.state(kWeightsTag) == TagState::kDiscarded;
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    const auto& tags = snapshots[rank].resident_tags();
    const std::set<std::string> resident(tags.begin(), tags.end());
    std::vector<std::string> to_sleep, to_wake;
    for (const std::string tag : kMemoryTags) {
      const bool is_resident = resident.count(tag) > 0, stays = held.asleep().count(tag) == 0;
      const bool deepens = tag == kWeightsTag && discards && snapshots[rank].sleep_level() < kMaxSleepLevel;
      if (!stays && (is_resident || deepens)) to_sleep.push_back(tag);
      if (stays && !is_resident) to_wake.push_back(tag);
    }
    if (!to_sleep.empty()) sleep[rank] = ToTransition(discards ? kMaxSleepLevel : kMinSleepLevel, to_sleep);
    if (!to_wake.empty()) wake[rank] = WakeTransition(to_wake, !held.weights_stale());
  }
  std::atomic<bool> committed{false};
  RETURN_IF_ERROR(Run(sleep, &committed).status());
  RETURN_IF_ERROR(Run(wake, &committed).status());
  committed_bytes_.reset();  // the epoch's caches come later
  return absl::OkStatus();
}

absl::StatusOr<TransitionReport> GroupSleep::Run(const Transitions& transitions,
                                                 std::atomic<bool>* committed) {
  if (std::none_of(transitions.begin(), transitions.end(), [](const auto& one) { return one.has_value(); }))
    return TransitionReport();
  const bool only_sleeps = std::all_of(transitions.begin(), transitions.end(), [](const auto& one) {
    return !one.has_value() || one->sleep_level() != kAwakeLevel;
  });
  Timeouts timeouts;
  copy_bytes_.clear();
  if (only_sleeps && held_bytes_.has_value()) {
    timeouts = TimeoutsOf({{MovementKind::kBackup, *held_bytes_}}, *held_bytes_);
  } else {
    ASSIGN_OR_RETURN(timeouts, AskRanks(transitions, only_sleeps));
  }
  const uint64_t id = calls_.NextOperation();
  if (const absl::Status error = Prepare(transitions, id, timeouts.prepare); !error.ok()) {
    if (latch_.status().ok()) Abort(transitions, id, timeouts.prepare + timeouts.commit, error);
    return error;
  }
  reads_weights_ = false;
  // In this order: a thread that learns of the group's loss, and then reads `committed`, reads the decision.
  committed->store(true);
  if (absl::Status lost = latch_.status(); !lost.ok()) {
    committed->store(false);
    return lost;
  }
  absl::StatusOr<TransitionReport> report = Commit(transitions, id, timeouts.commit);
  if (report.ok()) NoteSpeeds(*report, only_sleeps);
  return report;
}

absl::StatusOr<GroupSleep::Plans> GroupSleep::Plan(const Transitions& transitions) const {
  return calls_.CollectOperation(
      RanksOf(transitions), options_.transition_timeout, &Stub::Plan, v1::PlanRequest(),
      [&](size_t rank, v1::PlanRequest* request) { *request->mutable_transition() = *transitions[rank]; });
}

std::vector<RankNeed> GroupSleep::NeedsOf(const Plans& plans) const {
  std::vector<RankNeed> needs;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    const v1::PlanResponse& plan = plans[rank];
    needs.push_back({.name = workers_[rank].name,
                     .account = MemoryOf(workers_[rank], plan),
                     .bytes_by_tag = {plan.map_bytes_by_tag().begin(), plan.map_bytes_by_tag().end()},
                     .available_bytes = plan.available_bytes()});
  }
  return needs;
}

absl::StatusOr<GroupSleep::Timeouts> GroupSleep::AskRanks(const Transitions& transitions, bool only_sleeps) {
  ASSIGN_OR_RETURN(const Plans plans, Plan(transitions));
  RETURN_IF_ERROR(CheckMemory(NeedsOf(plans)));
  int64_t mapped = 0, copied = 0, released = 0, read = 0;
  bool reads_weights = false;
  for (const v1::PlanResponse& plan : plans) {
    copy_bytes_.push_back(plan.copy_bytes());
    copied = std::max(copied, plan.copy_bytes());
    mapped = std::max(mapped, SumOf(plan.map_bytes_by_tag()));
    released = std::max(released, SumOf(plan.release_bytes_by_tag()));
    reads_weights |= plan.reads_weights();
    const auto weights = plan.map_bytes_by_tag().find(kWeightsTag);
    if (weights != plan.map_bytes_by_tag().end()) read = std::max(read, weights->second);
  }
  reads_weights_ = reads_weights;
  std::vector<TransitionSpeeds::Movement> prepared = {
      {MovementKind::kMap, mapped}, {only_sleeps ? MovementKind::kBackup : MovementKind::kRestore, copied}};
  if (reads_weights) prepared.push_back({MovementKind::kRead, read});
  return TimeoutsOf(prepared, released);
}

// A Commit that releases no device memory gives up backups at most, which takes less than making backups.
GroupSleep::Timeouts GroupSleep::TimeoutsOf(const std::vector<TransitionSpeeds::Movement>& prepared,
                                            int64_t released) const {
  Timeouts timeouts;
  timeouts.prepare = options_.speeds->Timeout(prepared, options_);
  timeouts.commit = released > 0 ? options_.speeds->Timeout({{MovementKind::kRelease, released}}, options_)
                                 : std::min(options_.transition_timeout, timeouts.prepare);
  return timeouts;
}

void GroupSleep::NoteSpeeds(const TransitionReport& report, bool only_sleeps) const {
  std::map<MovementKind, std::vector<TransitionSpeeds::Moved>> moved;
  for (const RankReport& rank : report.ranks) {
    int64_t mapped = 0, freed = 0, copied = 0;
    for (const auto& [tag, bytes] : rank.tags) {
      mapped += bytes.mapped_bytes;
      freed += bytes.freed_bytes;
      // Without a Plan the number of earlier backups is unknown: rather too few bytes than too many.
      if (bytes.backed_up_bytes > 0 && (copied == 0 || bytes.backed_up_bytes < copied))
        copied = bytes.backed_up_bytes;
    }
    if (!copy_bytes_.empty()) copied = copy_bytes_[rank.rank];
    const auto weights = rank.tags.find(kWeightsTag);
    const int64_t read = weights == rank.tags.end() ? 0 : weights->second.resident_bytes;
    moved[MovementKind::kMap].push_back({mapped, rank.seconds.map});
    moved[only_sleeps ? MovementKind::kBackup : MovementKind::kRestore].push_back(
        {copied, rank.seconds.copy});
    moved[MovementKind::kRead].push_back({read, rank.seconds.read});
    moved[MovementKind::kRelease].push_back({freed, rank.seconds.release});
  }
  for (const auto& [kind, ranks] : moved) options_.speeds->Note(kind, ranks);
}

absl::Status GroupSleep::Prepare(const Transitions& transitions, uint64_t id, absl::Duration timeout) const {
  const std::vector<absl::Status> statuses = calls_.RunOperation(
      "Prepare", timeout, [&](const WorkerLink& worker, size_t rank, grpc::ClientContext* context) {
        if (!transitions[rank].has_value()) return grpc::Status::OK;
        v1::PrepareRequest request;
        request.set_group_epoch(calls_.group_epoch());
        request.set_operation_id(id);
        *request.mutable_transition() = *transitions[rank];
        v1::PrepareResponse response;
        return worker.stub->Prepare(context, request, &response);
      });
  return WithMissingOfAll(calls_.FirstError(statuses), statuses);
}

// Only of all ranks: some ranks may have taken no part in a sleep.
void GroupSleep::NoteBytes(const TransitionReport& report) {
  if (report.ranks.size() != workers_.size()) return;
  GroupBytes sum;
  int64_t most = 0;
  for (const RankReport& rank : report.ranks) {
    int64_t resident = 0;
    for (const auto& [tag, bytes] : rank.tags) {
      resident += bytes.resident_bytes;
      sum.resident[tag] += bytes.resident_bytes;
      sum.host[tag] += bytes.host_bytes;
      sum.sleeping[tag] += bytes.sleeping_bytes;
    }
    most = std::max(most, resident);
  }
  held_bytes_ = most;
  committed_bytes_ = std::move(sum);
}

absl::StatusOr<TransitionReport> GroupSleep::Commit(const Transitions& transitions, uint64_t id,
                                                    absl::Duration timeout) {
  held_bytes_.reset();
  committed_bytes_.reset();
  v1::CommitRequest request;
  request.set_prepare_operation_id(id);
  const auto responses = calls_.CollectOperation(RanksOf(transitions), timeout, &Stub::Commit, request);
  if (!responses.ok()) {
    latch_.Fail(absl::UnavailableError(
        absl::StrCat("a sleep or a wake-up was committed, but not every rank confirms it: ",
                     responses.status().message())));
    return responses.status();
  }
  TransitionReport report;
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    if (transitions[rank].has_value()) report.ranks.push_back(ToReport(rank, (*responses)[rank]));
  }
  NoteBytes(report);
  return report;
}

void GroupSleep::Abort(const Transitions& transitions, uint64_t id, absl::Duration timeout,
                       const absl::Status& error) {
  v1::AbortRequest request;
  request.set_prepare_operation_id(id);
  const absl::Status undone =
      calls_.CollectOperation(RanksOf(transitions), timeout, &Stub::Abort, request).status();
  if (undone.ok()) {
    reads_weights_ = false;
    return;
  }
  latch_.Fail(absl::UnavailableError(
      absl::StrCat("not every rank has undone what had failed (", error.message(), "): ", undone.message())));
}

}  // namespace somnus
