#include "tests/simulation/faults.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace somnus::simulation {
namespace {

constexpr absl::Duration kBeginning = absl::Milliseconds(100);
constexpr absl::Duration kRecoveryTime = absl::Milliseconds(500);
// Nothing that is shorter makes a group give a worker up.
constexpr absl::Duration kSurvivable = absl::Milliseconds(900);
constexpr double kClockJumpProbability = 0.1;
constexpr double kDiskProbability = 0.4;  // of a fault where the disk may be struck
constexpr double kLinkProbability = 0.2;  // of a fault in a pipeline

}  // namespace

void Faults::Plan(absl::Duration span) {
  Random& random = site_.world.random();
  // The most is drawn twice as often as another number: the effects of several faults together are less
  // known.
  num_left_ = static_cast<int>(std::min<int64_t>(random.Between(0, kMaxFaults + 1), kMaxFaults));
  // Streams open and caches fill at the beginning.
  if (random.Chance(0.3)) span = std::min(span, kBeginning);
  for (int i = 0; i < num_left_; ++i) StrikeAfter(random.Between(absl::ZeroDuration(), span));
}

void Faults::StrikeAgain() {
  Random& random = site_.world.random();
  if (random.Chance(0.5)) StrikeAfter(random.Between(absl::ZeroDuration(), kRecoveryTime));
}

void Faults::StrikeAfter(absl::Duration delay) {
  const int rank = static_cast<int>(site_.world.random().Between(0, world_size_ - 1));
  site_.world.After(delay, [this, rank] {
    if (over_ || num_left_ == 0) return;
    if (site_.world.random().Chance(kClockJumpProbability)) JumpWallClock();
    Strike(rank);
  });
}

// The jump must change nothing, and does not count: no group may be lost by a jump.
void Faults::JumpWallClock() {
  World& world = site_.world;
  world.JumpWallClock(world.random().Between(-absl::Hours(2), absl::Hours(2)));
  world.Log(absl::StrCat("the wall clock is now off by ", absl::FormatDuration(world.wall_offset())));
}

// No worker is replaced after a fault of a disk: a sleep or a wake-up fails, and the next may succeed.
void Faults::StrikeDisk() {
  Random& random = site_.world.random();
  switch (random.Between(0, 2)) {
    case 0:
      return site_.disk.Fill(random.Between(absl::Milliseconds(100), absl::Seconds(5)));
    case 1:
      site_.world.Log("a write finds the disk full");
      return site_.disk.FailAt(static_cast<int>(random.Between(1, 8)));
    case 2:
      site_.world.Log("a read of the disk is damaged");
      return site_.disk.DamageReadAt(static_cast<int>(random.Between(1, 4)));
  }
}

// No worker is replaced: the ranks that wait for the link are told to give up, and meet again over another
// link.
void Faults::StrikeLink(int pid) {
  World& world = site_.world;
  if (world.random().Chance(0.5)) {
    world.Log(absl::StrCat(world.name(pid), ": its link to another stage breaks"));
    site_.workers[pid].link_error = absl::UnavailableError("the connection to another stage broke");
  } else {
    world.Log(absl::StrCat(world.name(pid), ": hidden states are lost on its link to another stage"));
    site_.workers[pid].stalls_link = true;
  }
}

void Faults::Strike(int rank) {
  World& world = site_.world;
  Random& random = world.random();
  const std::vector<int> live = site_.LiveWorkers(rank);
  if (live.empty()) return;
  const int pid = live[static_cast<size_t>(random.Between(0, static_cast<int64_t>(live.size()) - 1))];
  WorkerProcess& worker = site_.workers[pid];
  --num_left_;
  ++num_struck_;
  if (may_break_disk_ && random.Chance(kDiskProbability)) return StrikeDisk();
  if (site_.has_stages && random.Chance(kLinkProbability)) return StrikeLink(pid);
  const int64_t kind = random.Between(0, may_damage_ ? 10 : 9);
  // A step that fails, and a step that takes a little longer, is no reason to replace the worker; nor is a
  // connection that breaks, unless the connection is local, and breaks when its worker ends.
  worker.may_end |= kind == 5 ? worker.local : kind != 6 && kind != 7 && kind != 10;
  switch (kind) {
    case 0:
    case 1:
      return world.Kill(pid, "was killed by signal 9 (Killed)");
    case 2:  // for good, until somebody kills the worker
      return world.Stop(pid);
    case 3:  // for a while, which may be long enough to be replaced
      world.Stop(pid);
      world.After(random.Between(absl::Milliseconds(10), absl::Seconds(12)),
                  [this, pid] { site_.world.Continue(pid); });
      return;
    case 4:
      return site_.network.Cut(pid, random.Between(absl::Milliseconds(10), absl::Seconds(12)));
    case 5:
      world.Log(absl::StrCat(world.name(pid), ": its connections are reset"));
      return site_.network.Reset(pid);
    case 6:
      world.Log(absl::StrCat(world.name(pid), ": its next step fails"));
      worker.step_error = absl::InternalError("the device has failed");
      return;
    case 7:
      worker.step_hang = random.Between(absl::Milliseconds(100), absl::Seconds(30));
      worker.may_end |= worker.step_hang > kSurvivable;
      world.Log(
          absl::StrCat(world.name(pid), ": its next step takes ", absl::FormatDuration(worker.step_hang)));
      return;
    case 8:
      worker.load_delay = random.Between(absl::Milliseconds(100), absl::Seconds(10));
      world.Log(absl::StrCat(world.name(pid), ": its disk is slow"));
      // The successor reads the disk again, or a wake-up after a sleep at level 2.
      if (random.Chance(0.5)) world.Kill(pid, "was killed by signal 9 (Killed)");
      return;
    case 9:
      if (worker.memory == nullptr) return;
      world.Log(absl::StrCat(world.name(pid), ": a change of its memory fails"));
      memory_fails_ = true;
      worker.memory->FailAt(static_cast<int>(random.Between(1, 12)));
      return;
    case 10:
      world.Log(absl::StrCat(world.name(pid), ": its backup is damaged"));
      worker.damage_backup = damaged_ = true;
      return;
  }
}

}  // namespace somnus::simulation
