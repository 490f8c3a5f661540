#include "tests/simulation/roller.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/worker.h"

namespace somnus::simulation {
namespace {

constexpr int kMaxRounds = 2;
constexpr absl::Duration kLongestGrace = absl::Seconds(2);

}  // namespace

void Roller::Work(absl::Duration span) {
  for (int64_t i = random_.Between(1, kMaxRounds); i > 0; --i) {
    world_.Sleep(random_.Between(absl::ZeroDuration(), span));
    Roll();
  }
}

// After a roll that went well no replica has a worker of before.
void Roller::Roll() {
  std::vector<int> before;
  for (auto& [pid, worker] : site_.workers) {
    if (!world_.alive(pid) || worker.worker == nullptr) continue;
    worker.may_end = true;
    before.push_back(pid);
  }
  is_calling_ = true;
  const absl::Status status = engine_.Roll(random_.Between(absl::ZeroDuration(), kLongestGrace));
  is_calling_ = false;
  if (status.ok()) {
    ++num_rolls_;
    const EngineStats stats = engine_.Stats();
    for (const int pid : before) {
      const WorkerProcess& process = site_.workers[pid];
      if (!world_.alive(pid) || process.worker == nullptr) continue;
      if (process.worker->group_epoch() == stats.replicas[process.group].group_epoch)
        world_.Violate(absl::StrCat(world_.name(pid), " was there before a roll, and still serves"));
    }
  }
  note_("Roll", status);
}

}  // namespace somnus::simulation
