#include "coordinator/group/left_workers.h"

#include <algorithm>

namespace somnus {
namespace {

ProcessesByRank::const_iterator Find(const ProcessesByRank& processes, pid_t pid) {
  return std::find_if(processes.begin(), processes.end(),
                      [pid](const auto& process) { return process.second.pid == pid; });
}

}  // namespace

void LeftWorkers::Expect(const ProcessesByRank& left) {
  absl::MutexLock lock(&mu_);
  left_ = missing_ = left;
  if (missing_.empty()) all_came_.Stop();
}

std::optional<Adoption> LeftWorkers::Decide(pid_t pid, const std::function<Adoption(int rank)>& decide) {
  absl::MutexLock lock(&mu_);
  if (const auto found = Find(adopted_, pid); found != adopted_.end()) return decide(found->first);
  const auto found = Find(missing_, pid);
  if (found == missing_.end()) return std::nullopt;
  Adoption adoption = decide(found->first);
  if (adoption.action == v1::REGISTER_ACTION_ADOPT) adopted_.insert(*found);
  missing_.erase(found);
  if (missing_.empty()) all_came_.Stop();
  return adoption;
}

LeftWorkers::Outcome LeftWorkers::Await(absl::Duration patience) {
  all_came_.WaitFor(patience);
  absl::MutexLock lock(&mu_);
  missing_.clear();
  Outcome outcome{.adopted = adopted_};
  for (const auto& [rank, process] : left_) {
    if (adopted_.count(rank) == 0) outcome.others.push_back(process);
  }
  return outcome;
}

int LeftWorkers::num_left() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int>(left_.size());
}

int LeftWorkers::num_adopted() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int>(adopted_.size());
}

}  // namespace somnus
