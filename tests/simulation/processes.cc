// WorkerProcesses over the simulation's processes.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/executor/worker_process.h"
#include "tests/simulation/site.h"

namespace somnus {
namespace {

using simulation::Site;

constexpr absl::Duration kLongestReaping = absl::Milliseconds(5);

// The group of the replica or of the model that a worker's command names; 0 where there is a single group.
int GroupOf(const std::vector<std::string>& command) {
  int group = 0;
  for (absl::string_view argument : command) {
    const bool names_group = absl::ConsumePrefix(&argument, "--log-name=replica ") ||
                             absl::ConsumePrefix(&argument, "--log-name=model ");
    if (names_group && absl::SimpleAtoi(argument, &group)) break;
  }
  return group;
}

// Outlives the object: an end may be reaped after the object's end.
struct Children {
  WorkerProcesses::ExitCallback on_exit;
  int group = 0;
  std::vector<std::string> coordinators;  // by rank
  std::vector<pid_t> pids;                // by rank, the last process
  std::map<pid_t, bool> reaped;
  bool terminated = false;
};

class SimulatedProcesses : public WorkerProcesses {
 public:
  SimulatedProcesses(const std::vector<std::vector<std::string>>& commands, ExitCallback on_exit,
                     const std::map<int, ProcessId>& adopted) {
    children_->on_exit = std::move(on_exit);
    children_->group = GroupOf(commands[0]);
    children_->pids.resize(commands.size());
    for (const std::vector<std::string>& command : commands) {
      absl::string_view coordinator = command[1];
      absl::ConsumePrefix(&coordinator, "--coordinator=");
      children_->coordinators.emplace_back(coordinator);
    }
    for (int rank = 0; rank < static_cast<int>(commands.size()); ++rank) {
      const auto left = adopted.find(rank);
      if (left != adopted.end() && Site::current().world.alive(left->second.pid)) {
        Watch(rank, left->second.pid);
      } else {
        Start(rank);
      }
    }
  }
  ~SimulatedProcesses() override { Terminate(absl::ZeroDuration()); }

  pid_t pid(int rank) const override { return children_->pids[rank]; }

  absl::Status Respawn(int rank) override {
    if (children_->terminated) return absl::CancelledError("the processes are being ended");
    if (!children_->reaped[pid(rank)]) return absl::FailedPreconditionError("the process still runs");
    Start(rank);
    return absl::OkStatus();
  }

  void Kill(int rank, pid_t pid) override {
    if (this->pid(rank) == pid) Site::current().world.Kill(pid, "was killed by signal 9 (Killed)");
  }

  absl::Status AwaitExit(int rank, pid_t pid, absl::Duration timeout) override {
    simulation::World& world = Site::current().world;
    const absl::Duration deadline = world.now() + timeout;
    while (!children_->reaped[pid] && this->pid(rank) == pid) {
      if (!world.Block(children_.get(), deadline) && world.now() >= deadline)
        return absl::DeadlineExceededError("the process has not ended");
    }
    return absl::OkStatus();
  }

  void Leave() override {
    children_->terminated = true;
    children_->pids.clear();
  }

  void Terminate(absl::Duration grace) override {
    Site& site = Site::current();
    children_->terminated = true;
    const absl::Duration deadline = site.world.now() + grace;
    for (pid_t pid : children_->pids) {
      if (site.world.alive(pid) && site.workers[pid].leave) site.workers[pid].leave();
    }
    for (size_t rank = 0; rank < children_->pids.size(); ++rank) {
      const pid_t last = children_->pids[rank];
      if (!AwaitExit(static_cast<int>(rank), last, deadline - site.world.now()).ok()) {
        Kill(static_cast<int>(rank), last);
        AwaitExit(static_cast<int>(rank), last, absl::InfiniteDuration()).IgnoreError();
      }
    }
  }

 private:
  void Start(int rank) {
    Site& site = Site::current();
    // A worker that an earlier coordinator has not written down in time leaves by itself.
    for (const int pid : site.LiveWorkers(children_->group, rank)) {
      if (site.workers[pid].parent == site.world.current_process())
        site.world.Violate(absl::StrCat("rank ", rank, " gets a process while its last one lives"));
    }
    Watch(rank, site.StartWorker(children_->group, rank, children_->coordinators[rank], /*local=*/true));
  }

  void Watch(int rank, pid_t pid) {
    Site& site = Site::current();
    const int parent = site.world.current_process();
    site.workers[pid].parent = parent;
    children_->pids[rank] = pid;
    children_->reaped[pid] = false;
    site.world.OnEnd(pid, [&site, children = children_, rank, pid, parent] {
      site.world.After(site.world.random().Between(absl::ZeroDuration(), kLongestReaping),
                       [&site, children, rank, pid, parent] {
                         if (!site.world.alive(parent)) return;
                         site.world.Spawn(parent, [&site, children, rank, pid] {
                           children->reaped[pid] = true;
                           site.world.Wake(children.get());
                           if (children->terminated) return;
                           children->on_exit(rank, pid,
                                             absl::UnavailableError(absl::StrCat("rank ", rank, " (pid ", pid,
                                                                                 ") ", site.world.end(pid))));
                         });
                       });
    });
  }

  const std::shared_ptr<Children> children_ = std::make_shared<Children>();
};

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerProcesses>> WorkerProcesses::Spawn(
    const std::vector<std::vector<std::string>>& commands, const std::vector<std::string>&,
    ExitCallback on_exit, const std::map<int, ProcessId>& adopted, absl::Duration) {
  return std::make_unique<SimulatedProcesses>(commands, std::move(on_exit), adopted);
}

}  // namespace somnus
