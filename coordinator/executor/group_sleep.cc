#include "coordinator/executor/group_sleep.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/status.h"

namespace somnus {
namespace {

// Into the report of a rank: what one call on it did.
template <typename Bytes>
void AddBytes(const Bytes& bytes, size_t rank, int64_t TagReport::*member, TransitionReport* report) {
  while (report->ranks.size() <= rank)
    report->ranks.push_back({.rank = static_cast<int>(report->ranks.size())});
  for (const auto& [tag, count] : bytes) report->ranks[rank].tags[tag].*member += count;
}

// Whether the rank is in `state` entirely: asleep means that no tag has resident bytes.
bool IsIn(const v1::WorkerStatusResponse& status, const std::string& state) {
  if (status.state() != state) return false;
  if (state != "asleep") return true;
  return std::all_of(status.bytes_by_tag().begin(), status.bytes_by_tag().end(),
                     [](const auto& tag) { return tag.second == 0; });
}

std::string Describe(const v1::WorkerStatusResponse& status) {
  std::string text = status.state();
  for (const auto& [tag, bytes] : status.bytes_by_tag()) {
    if (bytes > 0) absl::StrAppend(&text, ", ", tag, " ", bytes, " bytes");
  }
  return text;
}

}  // namespace

std::vector<absl::Status> GroupSleep::SleepAll(int level, TransitionReport* report) const {
  v1::WorkerSleepRequest request;
  request.set_level(level);
  calls_.Stamp(&request);
  std::vector<v1::WorkerSleepResponse> responses(num_ranks_);
  std::vector<absl::Status> statuses = calls_.RunOperation(
      options_.lifecycle_timeout, [&](const WorkerLink& worker, size_t rank, grpc::ClientContext* context) {
        return worker.stub->Sleep(context, request, &responses[rank]);
      });
  for (size_t rank = 0; rank < num_ranks_; ++rank)
    AddBytes(responses[rank].freed_bytes_by_tag(), rank, &TagReport::freed_bytes, report);
  return statuses;
}

std::vector<absl::Status> GroupSleep::WakeAll(const std::vector<std::string>& tags, bool reads_weights,
                                              TransitionReport* report) const {
  v1::WorkerWakeUpRequest request;
  request.mutable_tags()->Add(tags.begin(), tags.end());
  calls_.Stamp(&request);
  std::vector<v1::WorkerWakeUpResponse> responses(num_ranks_);
  std::vector<absl::Status> statuses =
      calls_.RunOperation(reads_weights ? options_.load_timeout : options_.lifecycle_timeout,
                          [&](const WorkerLink& worker, size_t rank, grpc::ClientContext* context) {
                            return worker.stub->WakeUp(context, request, &responses[rank]);
                          });
  for (size_t rank = 0; rank < num_ranks_; ++rank)
    AddBytes(responses[rank].mapped_bytes_by_tag(), rank, &TagReport::mapped_bytes, report);
  return statuses;
}

absl::StatusOr<TransitionReport> GroupSleep::Sleep(const SleepSpec& spec, const Residency& before) {
  const int level = spec.level;
  if (!spec.tags.empty() && spec.tags != before.ToSleep({.level = level}))
    return absl::UnimplementedError("tags: a sleep releases all of them");
  TransitionReport freed;
  const absl::Status error = calls_.FirstError(SleepAll(level, &freed));
  if (error.ok()) return freed;
  if (!latch_.status().ok()) return error;
  if (before.awake()) {
    TransitionReport ignored;
    Confirm("awake", WakeAll({}, /*reads_weights=*/level == 2, &ignored), error);
    return error;
  }
  // Some tags slept already, so the one state that all ranks can reach is asleep: weights that a rank has
  // discarded do not come back without a reload. Ranks that are asleep already return at once.
  const std::vector<absl::Status> again = SleepAll(level, &freed);
  if (calls_.FirstError(again).ok()) return freed;
  Confirm("asleep", again, error);
  return error;
}

absl::StatusOr<TransitionReport> GroupSleep::WakeUp(const std::vector<std::string>& tags,
                                                    const Residency& before) {
  TransitionReport mapped;
  const absl::Status error = calls_.FirstError(WakeAll(tags, before.WakeReadsWeights(tags), &mapped));
  if (error.ok()) return mapped;
  if (!latch_.status().ok()) return error;
  TransitionReport ignored;
  Confirm("asleep", SleepAll(before.level(), &ignored), error);
  return error;
}

void GroupSleep::Confirm(const std::string& state, const std::vector<absl::Status>& undone,
                         const absl::Status& error) {
  std::vector<v1::WorkerStatusResponse> replies(num_ranks_);
  v1::WorkerStatusRequest request;
  request.set_group_epoch(calls_.group_epoch());
  const std::vector<absl::Status> asked = calls_.Run(
      options_.status_timeout, [&](const WorkerLink& worker, size_t rank, grpc::ClientContext* context) {
        return worker.stub->GetStatus(context, request, &replies[rank]);
      });
  for (size_t rank = 0; rank < num_ranks_; ++rank) {
    // Without a reply to the undo the rank may still be at work, whatever it says now.
    const bool unknown = absl::IsDeadlineExceeded(undone[rank]) || absl::IsUnavailable(undone[rank]) ||
                         absl::IsCancelled(undone[rank]);
    if (!unknown && asked[rank].ok() && IsIn(replies[rank], state)) continue;
    const absl::Status cause = !undone[rank].ok() ? undone[rank] : asked[rank];
    const std::string what = cause.ok() ? absl::StrCat("rank ", rank, " is ", Describe(replies[rank]))
                                        : std::string(cause.message());
    latch_.Fail(absl::InternalError(
        absl::StrCat("not every rank is ", state, " after a failed call (", error.message(), "): ", what)));
    return;
  }
}

}  // namespace somnus
