#pragma once
// The faults of a simulated cluster, and the times of the faults.

#include "absl/time/time.h"
#include "tests/simulation/site.h"

namespace somnus::simulation {

class Faults {
 public:
  Faults(Site* site, int world_size) : site_(*site), world_size_(world_size) {}

  // Draws up to kMaxFaults faults, which come within `span` from now.
  void Plan(absl::Duration span);
  // Backups may be damaged, too: a self-check has to find the damage.
  void DamageBackups() { may_damage_ = true; }
  // The disk that backups are on may be damaged, too.
  void BreakDisk() { may_break_disk_ = true; }
  // A fault of a different kind has struck, beyond the faults that are planned here.
  void CountOther() { ++num_struck_; }
  int num_struck() const { return num_struck_; }
  // A sleep or a wake-up may return an error, for no other reason than this.
  bool memory_fails() const { return memory_fails_; }
  // A wake-up fails with DataLoss.
  bool damaged() const { return damaged_; }
  // To be called when the group is being recovered: a fault that was planned for later may strike now.
  void StrikeAgain();
  // Nothing goes wrong any more.
  void End() { over_ = true; }

  // No more faults than every request must survive.
  static constexpr int kMaxFaults = 3;

 private:
  void Strike(int rank);
  void StrikeDisk();
  // `pid`: of a worker of a pipeline.
  void StrikeLink(int pid);
  void JumpWallClock();
  void StrikeAfter(absl::Duration delay);

  Site& site_;
  const int world_size_;
  int num_struck_ = 0;
  int num_left_ = 0;
  bool memory_fails_ = false;
  bool may_damage_ = false;
  bool may_break_disk_ = false;
  bool damaged_ = false;
  bool over_ = false;
};

}  // namespace somnus::simulation
