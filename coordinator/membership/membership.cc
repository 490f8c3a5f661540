#include "coordinator/membership/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/running_clock.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr size_t kMaxNameLength = 512;
constexpr size_t kMaxCpuListBytes = 4096;
// A member whose last sign of life is no older counts as alive. This is the time of several heartbeats.
constexpr absl::Duration kFresh = absl::Seconds(5);
// An id is refused for as long as the worker could still try to register. Fewer workers than kMaxTakenOut are
// lost in that time.
constexpr size_t kMaxTakenOut = 1024;

std::string NameOf(const v1::RegisterRequest& worker) {
  return absl::StrCat("the worker on ", worker.host(), " (pid ", worker.pid(), ")");
}

std::string ShortBuild(const std::string& build_id) {
  return build_id.empty() ? "none" : build_id.substr(0, 12);
}

absl::Status CheckLength(absl::string_view field, const std::string& value, size_t least) {
  if (value.size() >= least && value.size() <= kMaxNameLength) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": must have ", least == 0 ? "at most 512 bytes" : "1 to 512 bytes"));
}

}  // namespace

absl::Status Membership::CheckRequest(const v1::RegisterRequest& request) const {
  RETURN_IF_ERROR(CheckLength("worker_id", request.worker_id(), 1));
  RETURN_IF_ERROR(CheckLength("host", request.host(), 0));
  RETURN_IF_ERROR(CheckLength("address", request.address(), 1));
  RETURN_IF_ERROR(CheckLength("build_id", request.build_id(), 0));
  RETURN_IF_ERROR(CheckLength("cpu_isa", request.cpu_isa(), 0));
  if (request.cpus().size() > kMaxCpuListBytes)
    return absl::InvalidArgumentError(absl::StrCat("cpus: must have at most ", kMaxCpuListBytes, " bytes"));
  if (request.version() != options_.version) {
    return absl::FailedPreconditionError(absl::StrCat("version: the coordinator is ", options_.version,
                                                      ", the worker is ", request.version()));
  }
  if (request.has_preferred_rank() &&
      (request.preferred_rank() < 0 || request.preferred_rank() >= options_.world_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("preferred_rank: ", request.preferred_rank(), " is not below ", options_.world_size));
  }
  return absl::OkStatus();
}

absl::Status Membership::CheckBuild(const v1::RegisterRequest& request) const {
  std::string build_id = options_.build_id;
  if (build_id.empty()) {
    if (members_.empty()) return absl::OkStatus();
    build_id = members_[0].request.build_id();
  }
  if (request.build_id() == build_id) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("build_id: the group's is ", ShortBuild(build_id),
                                                    ", the worker's is ", ShortBuild(request.build_id())));
}

bool Membership::RunsOnCpu(const v1::RegisterRequest& worker) const {
  const bool is_given = options_.device != v1::DEVICE_TYPE_UNSPECIFIED;
  return (is_given ? options_.device : worker.device_type()) == v1::DEVICE_TYPE_CPU;
}

// Instruction sets differ in the last bits of their results, and so in tokens: also within a request that
// goes on after the loss of the group's last member.
absl::Status Membership::CheckCpuIsa(const v1::RegisterRequest& request) const {
  if (!RunsOnCpu(request)) return absl::OkStatus();
  std::optional<std::string> cpu_isa = cpu_isa_;
  for (const Member& member : members_) {
    if (!cpu_isa.has_value() && RunsOnCpu(member.request)) cpu_isa = member.request.cpu_isa();
  }
  if (!cpu_isa.has_value() || request.cpu_isa() == *cpu_isa) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cpu_isa: the group computes with ", cpu_isa->empty() ? "none" : *cpu_isa, ", ",
                   NameOf(request), " with ", request.cpu_isa().empty() ? "none" : request.cpu_isa(),
                   ", which gives other tokens; SOMNUS_CPU_ISA chooses one that all hosts have"));
}

bool Membership::NoteMember(const std::string& worker_id, MonotonicTime now) {
  for (Member& member : members_) {
    if (member.request.worker_id() != worker_id) continue;
    member.last_seen = now;
    UpdateComplete(now);
    return true;
  }
  return false;
}

absl::Status Membership::Register(const v1::RegisterRequest& request, MonotonicTime now, Adoption* adoption) {
  RETURN_IF_ERROR(CheckRequest(request));
  {
    absl::MutexLock lock(&mu_);
    if (NoteMember(request.worker_id(), now)) return absl::OkStatus();
  }
  if (request.has_snapshot() && options_.adopt) {
    *adoption = options_.adopt(request);
    if (adoption->action != v1::REGISTER_ACTION_ADOPT) return absl::OkStatus();
  }
  absl::MutexLock lock(&mu_);
  if (NoteMember(request.worker_id(), now)) return absl::OkStatus();
  if (std::find(taken_out_.begin(), taken_out_.end(), request.worker_id()) != taken_out_.end()) {
    return absl::PermissionDeniedError("worker_id: the group has given this worker up; start another one");
  }
  RETURN_IF_ERROR(CheckBuild(request));
  RETURN_IF_ERROR(CheckCpuIsa(request));
  RETURN_IF_ERROR(FindPlace(request));
  Member member;
  member.request = request;
  member.last_seen = member.same_since = now;
  members_.push_back(std::move(member));
  full_since_ = now;
  UpdateComplete(now);
  return absl::OkStatus();
}

absl::Status Membership::FindPlace(const v1::RegisterRequest& request) const {
  if (request.has_preferred_rank()) {
    for (const Member& member : members_) {
      if (member.place() != request.preferred_rank()) continue;
      return absl::UnavailableError(absl::StrCat("preferred_rank: ", request.preferred_rank(),
                                                 " is taken by ", NameOf(member.request), " for now"));
    }
  }
  if (static_cast<int32_t>(members_.size()) < options_.world_size) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("all ", options_.world_size, " places of the group are taken for now"));
}

void Membership::UpdateComplete(MonotonicTime now) {
  const absl::Duration fresh = std::min(kFresh, options_.hang_timeout);
  if (complete_ || static_cast<int32_t>(members_.size()) < options_.world_size) return;
  complete_ = std::all_of(members_.begin(), members_.end(), [&](const Member& member) {
    if (options_.confirm_members && member.last_seen < full_since_) return false;
    return now - member.last_seen <= fresh;
  });
  if (!complete_) return;
  AssignRanks();
  const v1::RegisterRequest& first = members_[0].request;
  if (!cpu_isa_.has_value() && RunsOnCpu(first)) cpu_isa_ = first.cpu_isa();
  Wake();
}

bool Membership::Heartbeat(const v1::HeartbeatRequest& request, MonotonicTime now) {
  absl::MutexLock lock(&mu_);
  for (Member& member : members_) {
    if (member.request.worker_id() != request.worker_id()) continue;
    member.last_seen = now;
    member.group_epoch = request.group_epoch();
    if (member.step_in_progress != request.step_in_progress() ||
        member.last_step_id != request.last_step_id()) {
      member.step_in_progress = request.step_in_progress();
      member.last_step_id = request.last_step_id();
      member.same_since = now;
    }
    UpdateComplete(now);
    return true;
  }
  return false;
}

void Membership::AssignRanks() {
  std::vector<Member*> by_rank(members_.size(), nullptr), others;
  for (Member& member : members_) {
    if (member.place() >= 0) {
      by_rank[member.place()] = &member;
    } else {
      others.push_back(&member);
    }
  }
  std::stable_sort(others.begin(), others.end(),
                   [](const Member* a, const Member* b) { return a->request.host() < b->request.host(); });
  auto next = others.begin();
  std::vector<Member> sorted;
  for (Member* member : by_rank) {
    sorted.push_back(std::move(member != nullptr ? *member : **next++));
    sorted.back().rank = static_cast<int32_t>(sorted.size()) - 1;
  }
  members_ = std::move(sorted);
}

absl::StatusOr<std::vector<v1::RegisterRequest>> Membership::WaitForGroup(absl::Duration timeout,
                                                                          const StopCondition& stop) {
  const MonotonicTime deadline = RunningNow() + timeout;
  while (true) {
    std::shared_ptr<StopSignal> changed;
    {
      // The signal is taken before `stop` is asked: no Recheck after that is missed.
      absl::MutexLock lock(&mu_);
      changed = changed_;
    }
    if (stop) RETURN_IF_ERROR(stop());
    {
      absl::MutexLock lock(&mu_);
      RETURN_IF_ERROR(interruption_);
      if (complete_) {
        std::vector<v1::RegisterRequest> group;
        for (const Member& member : members_) group.push_back(member.request);
        return group;
      }
    }
    if (changed->WaitFor(deadline - RunningNow()) || RunningNow() < deadline) continue;
    absl::MutexLock lock(&mu_);
    const bool full = static_cast<int32_t>(members_.size()) == options_.world_size;
    return absl::DeadlineExceededError(absl::StrCat(
        full ? "not all of " : absl::StrCat("only ", members_.size(), " of "), options_.world_size,
        full ? " workers have sent a heartbeat" : " workers have registered", " within ",
        absl::FormatDuration(timeout)));
  }
}

void Membership::Wake() {
  changed_->Stop();
  changed_ = std::make_shared<StopSignal>();
}

void Membership::Recheck() {
  absl::MutexLock lock(&mu_);
  Wake();
}

void Membership::Interrupt(const absl::Status& reason) {
  absl::MutexLock lock(&mu_);
  if (interruption_.ok()) interruption_ = reason;
  Wake();
}

void Membership::Reopen(int32_t rank) {
  absl::MutexLock lock(&mu_);
  std::erase_if(members_, [&](const Member& member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (rank < 0 || member.place() != rank) return false;
    taken_out_.push_back(member.request.worker_id());
    complete_ = false;
    return true;
  });
  if (taken_out_.size() > kMaxTakenOut) taken_out_.pop_front();
}

bool Membership::IsTaken(int32_t rank) const {
  absl::MutexLock lock(&mu_);
  return std::any_of(members_.begin(), members_.end(),
                     [rank](const Member& member) { return member.place() == rank; });
}

std::vector<std::optional<MemberStatus>> Membership::Members(MonotonicTime now) const {
  absl::MutexLock lock(&mu_);
  std::vector<std::optional<MemberStatus>> ranks(options_.world_size);
  for (const Member& member : members_) {
    if (member.rank < 0) continue;
    ranks[member.rank] = MemberStatus{.worker = member.request,
                                      .silence = now - member.last_seen,
                                      .group_epoch = member.group_epoch,
                                      .last_step_id = member.last_step_id,
                                      .step_in_progress = member.step_in_progress};
  }
  return ranks;
}

void Membership::NoteWatch(MonotonicTime now) {
  if (now - last_watch_ > options_.hang_timeout / 4) watched_since_ = now;
  last_watch_ = now;
}

bool Membership::IsSilent(const Member& member, MonotonicTime now) const {
  return now - std::max(member.last_seen, watched_since_) > options_.hang_timeout;
}

std::vector<std::string> Membership::DropSilent(MonotonicTime now) {
  absl::MutexLock lock(&mu_);
  NoteWatch(now);
  std::vector<std::string> dropped;
  std::erase_if(members_, [&](const Member& member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const bool drop = member.rank < 0 && IsSilent(member, now);
    if (drop) dropped.push_back(NameOf(member.request));
    return drop;
  });
  return dropped;
}

std::vector<SilentMember> Membership::CheckHeartbeats(MonotonicTime now) {
  absl::MutexLock lock(&mu_);
  NoteWatch(now);
  std::vector<SilentMember> silent;
  for (Member& member : members_) {
    if (member.rank < 0 || member.reported || !IsSilent(member, now)) continue;
    member.reported = true;
    const absl::Duration silence = absl::Trunc(now - member.last_seen, absl::Milliseconds(1));
    silent.push_back({.rank = member.rank,
                      .worker = member.request,
                      .status = absl::UnavailableError(absl::StrCat(
                          "rank ", member.rank, " (", member.request.host(), ", pid ", member.request.pid(),
                          ") has sent no heartbeat for ", absl::FormatDuration(silence)))});
  }
  return silent;
}

absl::Status Membership::CheckProgress(MonotonicTime now) const {
  absl::MutexLock lock(&mu_);
  const Member* behind = nullptr;
  for (const Member& member : members_) {
    if (member.rank < 0 || !member.step_in_progress || now - member.same_since <= options_.stall_threshold)
      continue;
    const auto order = [](const Member& one) { return std::make_pair(one.last_step_id, one.last_seen); };
    if (behind == nullptr || order(member) < order(*behind)) behind = &member;
  }
  if (behind == nullptr) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("rank ", behind->rank, " (pid ", behind->request.pid(),
                                             ") has been in step ", behind->last_step_id, " for longer than ",
                                             absl::FormatDuration(options_.stall_threshold)));
}

}  // namespace somnus
