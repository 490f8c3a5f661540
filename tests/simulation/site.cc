#include "tests/simulation/site.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"

namespace somnus::simulation {
namespace {

Site* the_site = nullptr;

}  // namespace

Site::Site(uint64_t seed, WorkerMain worker_main)
    : world(seed), network(&world), disk(&world), steps(&world), worker_main_(std::move(worker_main)) {
  if (std::exchange(the_site, this) != nullptr) std::abort();
}

Site::~Site() { the_site = nullptr; }

Site& Site::current() { return *the_site; }

int Site::StartWorker(int group, int rank, const std::string& coordinator, bool local) {
  const int pid = world.NewProcess(absl::StrCat(GroupPrefix(group), "rank", rank));
  network.Watch(pid);
  world.OnEnd(pid, [this, pid] {
    if (on_worker_end) on_worker_end(pid);
  });
  workers[pid].group = group;
  workers[pid].rank = rank;
  workers[pid].local = local;
  if (local) workers[pid].parent = world.current_process();
  const std::string address = local ? absl::StrCat("unix:/worker-", pid) : absl::StrCat("host:", 1000 + pid);
  world.Spawn(pid, [this, pid, coordinator, address] { worker_main_(this, pid, coordinator, address); });
  world.Log(absl::StrCat(world.name(pid), " starts"));
  return pid;
}

std::string Site::GroupPrefix(int group) const {
  if (num_replicas > 1) return absl::StrCat("replica", group, "-");
  return num_models > 1 ? absl::StrCat("model", group, "-") : "";
}

std::vector<int> Site::LiveWorkers(int rank) const {
  std::vector<int> live;
  for (const auto& [pid, worker] : workers) {
    if (worker.rank == rank && world.alive(pid)) live.push_back(pid);
  }
  return live;
}

std::vector<int> Site::LiveWorkers(int group, int rank) const {
  std::vector<int> live = LiveWorkers(rank);
  std::erase_if(live, [&](int pid) { return workers.at(pid).group != group; });
  return live;
}

}  // namespace somnus::simulation
