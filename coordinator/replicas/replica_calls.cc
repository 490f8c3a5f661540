#include "coordinator/replicas/replica_calls.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "coordinator/engine/run_for_caller.h"
#include "coordinator/executor/memory_check.h"
#include "coordinator/residency/declined.h"

namespace somnus {

ReplicaCalls::ReplicaCalls(const SetParts& parts)
    : parts_(parts), results_(parts.loops.size(), TransitionReport()) {}

ReplicaCalls::Results ReplicaCalls::RunOn(const std::vector<bool>& chosen, const Call& call) const {
  Results results(parts_.loops.size(), TransitionReport());
  RunForCaller(results.size(), [&](size_t i) {
    if (chosen[i] && !parts_.loops.HasFailed(i)) results[i] = call(&parts_.loops.loop(i), i);
  });
  return results;
}

void ReplicaCalls::Run(const Call& call) { results_ = RunOn(std::vector<bool>(results_.size(), true), call); }

absl::StatusOr<TransitionReport> ReplicaCalls::Sum() const {
  TransitionReport sum;
  std::vector<absl::Status> errors;
  size_t num_failed = 0;
  for (size_t i = 0; i < results_.size(); ++i) {
    const bool failed = parts_.loops.HasFailed(i);
    num_failed += failed ? 1 : 0;
    if (!results_[i].ok() && (!failed || num_failed == results_.size()))
      errors.push_back(OfReplica(i, results_[i].status()));
    if (results_[i].ok()) sum.Add(*results_[i], static_cast<int>(i));
  }
  if (!errors.empty()) return WithMissingOfAll(errors.front(), errors);
  if (num_failed == results_.size()) return DeclinedError("the engine has failed");
  return sum;
}

absl::Status ReplicaCalls::Undo(const absl::Status& error, const std::function<bool(size_t)>& choose,
                                const Call& call) {
  std::vector<bool> chosen;
  for (size_t i = 0; i < results_.size(); ++i) chosen.push_back(results_[i].ok() && choose(i));
  const Results undone = RunOn(chosen, call);
  std::string left;
  for (size_t i = 0; i < undone.size(); ++i) {
    if (undone[i].ok()) continue;
    const std::string reason(undone[i].status().message());
    LogError("{}replica {} is not what it was before the call that failed: {}", parts_.options.log_name, i,
             reason);
    absl::StrAppend(&left, "; replica ", i,
                    " is not what it was before, since it could not be brought back: ", reason);
  }
  if (left.empty()) return error;
  absl::Status with_left(error.code(), absl::StrCat(error.message(), left));
  error.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& payload) { with_left.SetPayload(type, payload); });
  return with_left;
}

}  // namespace somnus
