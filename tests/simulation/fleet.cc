#include "tests/simulation/fleet.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace somnus::simulation {
namespace {

constexpr absl::Duration kLookInterval = absl::Seconds(60);
constexpr absl::Duration kLeavePatience =
    absl::Minutes(6);  // for remote workers, which look for a coordinator

}  // namespace

void Fleet::StartRemote(const Flags& flags, int group) {
  const std::string coordinator = absl::StrCat(flags.cluster_host, ":", flags.cluster_port);
  for (int rank = 0; rank < flags.world_size; ++rank) StartRemoteWorker(coordinator, group, rank);
}

void Fleet::StartRemoteWorker(const std::string& coordinator, int group, int rank) {
  const int pid = site_.StartWorker(group, rank, coordinator, /*local=*/false);
  world_.OnEnd(pid, [this, coordinator, group, rank] {
    if (!restarts_) return;
    const absl::Duration pause = world_.random().Between(absl::Milliseconds(50), absl::Seconds(3));
    world_.After(pause, [this, coordinator, group, rank] {
      if (restarts_) StartRemoteWorker(coordinator, group, rank);
    });
  });
  LookAfter(pid);
}

void Fleet::LookAfter(int pid) {
  world_.After(kLookInterval, [this, pid] {
    if (world_.stopped(pid)) return world_.Kill(pid, "was killed by signal 9 (Killed)");
    if (world_.alive(pid)) LookAfter(pid);
  });
}

void Fleet::KillStopped() {
  for (const auto& [pid, worker] : site_.workers) {
    if (!worker.local && world_.alive(pid) && world_.stopped(pid))
      world_.Kill(pid, "was killed by signal 9 (Killed)");
  }
}

void Fleet::AwaitEnd(bool local_workers) {
  const absl::Duration deadline = world_.now() + (local_workers ? absl::ZeroDuration() : kLeavePatience);
  while (NumLive() > 0 && world_.now() < deadline) world_.Sleep(absl::Milliseconds(200));
}

void Fleet::CheckNobodyIsLeft() {
  if (const int64_t live = NumLive(); live > 0)
    world_.Violate(absl::StrCat(live, " worker processes are left"));
}

int64_t Fleet::NumLive() const {
  return std::count_if(site_.workers.begin(), site_.workers.end(),
                       [this](const auto& worker) { return world_.alive(worker.first); });
}

}  // namespace somnus::simulation
