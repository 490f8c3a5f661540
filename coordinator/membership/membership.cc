#include "coordinator/membership/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

// Takes the same time for all tokens of one length, so that a token cannot be guessed byte by byte.
bool SameToken(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

constexpr size_t kMaxNameLength = 512;
// A member whose last sign of life is no older counts as alive. It is the time of several heartbeats.
constexpr absl::Duration kFresh = absl::Seconds(5);

std::string NameOf(const v1::RegisterRequest& worker) {
  return absl::StrCat("the worker on ", worker.host(), " (pid ", worker.pid(), ")");
}

}  // namespace

absl::Status Membership::Register(const v1::RegisterRequest& request, MonotonicTime now) {
  if (request.worker_id().empty() || request.worker_id().size() > kMaxNameLength) {
    return absl::InvalidArgumentError("worker_id: must have 1 to 512 bytes");
  }
  if (request.host().size() > kMaxNameLength) {
    return absl::InvalidArgumentError("host: must have at most 512 bytes");
  }
  if (request.address().empty() || request.address().size() > kMaxNameLength) {
    return absl::InvalidArgumentError("address: must have 1 to 512 bytes");
  }
  if (!SameToken(request.spawn_token(), options_.spawn_token)) {
    return absl::PermissionDeniedError("spawn_token: this coordinator does not know the worker");
  }
  if (request.version() != options_.version) {
    return absl::FailedPreconditionError(absl::StrCat("version: the coordinator is ", options_.version,
                                                      ", the worker is ", request.version()));
  }
  if (request.has_preferred_rank() &&
      (request.preferred_rank() < 0 || request.preferred_rank() >= options_.world_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("preferred_rank: ", request.preferred_rank(), " is not below ", options_.world_size));
  }
  absl::MutexLock lock(&mu_);
  for (Member& member : members_) {
    if (member.request.worker_id() == request.worker_id()) {
      member.last_seen = now;
      UpdateComplete(now);
      return absl::OkStatus();
    }
  }
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
  if (complete_) {
    return absl::FailedPreconditionError(
        absl::StrCat("the group of ", options_.world_size, " workers is complete"));
  }
  for (const Member& member : members_) {
    if (request.has_preferred_rank() && member.request.has_preferred_rank() &&
        member.request.preferred_rank() == request.preferred_rank()) {
      return absl::UnavailableError(absl::StrCat("preferred_rank: ", request.preferred_rank(),
                                                 " is taken by ", NameOf(member.request), " for now"));
    }
  }
  if (static_cast<int32_t>(members_.size()) < options_.world_size) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "all ", options_.world_size, " places are taken for now; not all of their workers are heard"));
}

void Membership::UpdateComplete(MonotonicTime now) {
  const absl::Duration fresh = std::min(kFresh, options_.heartbeat_timeout);
  if (complete_ || static_cast<int32_t>(members_.size()) < options_.world_size) return;
  complete_ = std::all_of(members_.begin(), members_.end(), [&](const Member& member) {
    if (options_.confirm_members && member.last_seen < full_since_) return false;
    return now - member.last_seen <= fresh;
  });
  if (complete_) settled_.Stop();
}

std::vector<std::string> Membership::DropSilent(MonotonicTime now) {
  absl::MutexLock lock(&mu_);
  std::vector<std::string> dropped;
  if (complete_) return dropped;
  std::erase_if(members_, [&](const Member& member) {
    const bool silent = now - member.last_seen > options_.heartbeat_timeout;
    if (silent) dropped.push_back(NameOf(member.request));
    return silent;
  });
  return dropped;
}

bool Membership::Heartbeat(const v1::HeartbeatRequest& request, MonotonicTime now) {
  absl::MutexLock lock(&mu_);
  for (Member& member : members_) {
    if (member.request.worker_id() != request.worker_id()) continue;
    member.last_seen = now;
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
  std::vector<const Member*> ranks(members_.size(), nullptr), others;
  for (const Member& member : members_) {
    if (member.request.has_preferred_rank()) {
      ranks[member.request.preferred_rank()] = &member;
    } else {
      others.push_back(&member);
    }
  }
  std::stable_sort(others.begin(), others.end(),
                   [](const Member* a, const Member* b) { return a->request.host() < b->request.host(); });
  auto next = others.begin();
  std::vector<Member> by_rank;
  for (const Member* member : ranks) by_rank.push_back(member != nullptr ? *member : **next++);
  members_ = std::move(by_rank);
}

absl::StatusOr<std::vector<v1::RegisterRequest>> Membership::WaitForGroup(absl::Duration timeout) {
  settled_.WaitFor(timeout);
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(interruption_);
  if (!complete_) {
    return absl::DeadlineExceededError(absl::StrCat("only ", members_.size(), " of ", options_.world_size,
                                                    " workers have registered within ",
                                                    absl::FormatDuration(timeout)));
  }
  AssignRanks();
  handed_out_ = true;
  std::vector<v1::RegisterRequest> group;
  for (const Member& member : members_) group.push_back(member.request);
  return group;
}

void Membership::Interrupt(const absl::Status& reason) {
  absl::MutexLock lock(&mu_);
  if (interruption_.ok()) interruption_ = reason;
  settled_.Stop();
}

absl::Status Membership::CheckHeartbeats(MonotonicTime now) const {
  absl::MutexLock lock(&mu_);
  if (!handed_out_) return absl::OkStatus();
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    const absl::Duration silence = now - members_[rank].last_seen;
    if (silence <= options_.heartbeat_timeout) continue;
    return absl::UnavailableError(absl::StrCat(
        "rank ", rank, " (", members_[rank].request.host(), ", pid ", members_[rank].request.pid(),
        ") has sent no heartbeat for ", absl::FormatDuration(absl::Trunc(silence, absl::Milliseconds(1)))));
  }
  return absl::OkStatus();
}

absl::Status Membership::CheckProgress(MonotonicTime now) const {
  absl::MutexLock lock(&mu_);
  if (!handed_out_) return absl::OkStatus();
  const Member* behind = nullptr;
  for (const Member& member : members_) {
    if (!member.step_in_progress || now - member.same_since <= options_.stall_threshold) continue;
    const auto order = [](const Member& one) { return std::make_pair(one.last_step_id, one.last_seen); };
    if (behind == nullptr || order(member) < order(*behind)) behind = &member;
  }
  if (behind == nullptr) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "rank ", behind - members_.data(), " (pid ", behind->request.pid(), ") has been in step ",
      behind->last_step_id, " for longer than ", absl::FormatDuration(options_.stall_threshold)));
}

}  // namespace somnus
