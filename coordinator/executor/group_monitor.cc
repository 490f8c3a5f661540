#include "coordinator/executor/group_monitor.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/heartbeat.h"

namespace somnus {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(200);

}  // namespace

GroupMonitor::GroupMonitor(const std::vector<WorkerLink>* workers, const StepStreams* streams,
                           FailureLatch* latch, absl::Duration blame_grace, MonotonicClock now)
    : workers_(*workers),
      streams_(*streams),
      latch_(*latch),
      blame_grace_(blame_grace),
      now_(std::move(now)) {}

GroupMonitor::~GroupMonitor() {
  Stop();
  if (thread_.joinable()) thread_.join();
}

void GroupMonitor::Start(std::function<void()> look) {
  look_ = std::move(look);
  thread_ = std::thread([this] { Run(); });
}

void GroupMonitor::AwaitStep(int64_t step_id, absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  step_id_ = step_id;
  timeout_ = timeout;
  deadline_ = now_() + timeout;
}

void GroupMonitor::StepArrived() {
  absl::MutexLock lock(&mu_);
  deadline_ = absl::InfiniteDuration();
}

void GroupMonitor::Run() {
  const Heartbeat heartbeat("", absl::StrCat("watch of the group of ", workers_.front().name));
  while (!stop_.WaitFor(kInterval)) {
    heartbeat.Beat();
    if (look_) look_();
    if (absl::Status late = CheckDeadline(); !late.ok()) return latch_.Fail(late);
    if (absl::Status broken = CheckConnections(); !broken.ok()) {
      // This leaves the exit status of a local process time to become known.
      (void)latch_.Blame(broken, blame_grace_);
      return;
    }
  }
}

absl::Status GroupMonitor::CheckDeadline() const {
  absl::MutexLock lock(&mu_);
  if (now_() < deadline_) return absl::OkStatus();
  std::string names;
  for (size_t rank : streams_.MissingRanks()) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", workers_[rank].name);
  }
  return absl::DeadlineExceededError(
      absl::StrCat(names, " did not reply to step ", step_id_, " within ", absl::FormatDuration(timeout_)));
}

absl::Status GroupMonitor::CheckConnections() const {
  for (const WorkerLink& worker : workers_) {
    if (worker.channel->GetState(false) == GRPC_CHANNEL_READY) continue;
    return absl::UnavailableError(absl::StrCat(worker.name, " lost its connection to the coordinator"));
  }
  return absl::OkStatus();
}

}  // namespace somnus
