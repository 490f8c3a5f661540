#pragma once
// What the parts of a simulated cluster share: the world, the network, the worker processes with the faults
// that await them, and the groups that ranks have formed.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/fakes/fake_vmm_driver.h"
#include "tests/fakes/fake_worker.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/network.h"
#include "tests/simulation/world.h"

namespace somnus {
class Worker;
}

namespace somnus::simulation {

// What the simulation knows of one worker process. The objects are the process' own, null before they are
// made and after they are gone; those of a killed process stay as they were.
struct WorkerProcess {
  int rank = 0;
  bool local = false;  // a coordinator started it, on its own host
  int parent = 0;      // of a local one: the coordinator that watches it
  Worker* worker = nullptr;
  FakeVmmDriver* memory = nullptr;
  std::function<void()> leave;  // what SIGTERM does
  bool may_end = false;         // something has struck it that a group may replace it for
  // Faults of its next step, load, and change of memory.
  absl::Status step_error;
  absl::Duration step_hang;
  absl::Duration load_delay;
  bool damage_backup = false;  // before it is restored the next time
};

// The ranks that have met under a name.
struct RankGroup {
  int world_size = 0;
  std::map<int, int> processes;  // by rank
  absl::Status failure;
  struct Round {
    std::map<int, std::string> data;  // by rank
    int num_left = 0;                 // ranks that have taken the data
  };
  std::map<int64_t, Round> rounds;

  void Fail(const absl::Status& reason);
};

class Site {
 public:
  // The body of a worker process.
  using WorkerMain =
      std::function<void(Site* site, int pid, const std::string& coordinator, const std::string& address)>;

  Site(uint64_t seed, WorkerMain worker_main);
  ~Site();
  static Site& current();

  World world;
  Network network;
  Disk disk;
  bool spills = false;  // backups are files on the disk
  FakeWorkerOptions model;
  std::map<int, WorkerProcess> workers;  // by pid
  std::map<std::string, std::shared_ptr<RankGroup>> groups;
  // How often somebody has written to the checkpoints' files. Whoever reads them anew finds what they were;
  // the backup that a rank has taken them for is no longer there.
  int64_t touches = 0;
  // Of run directories, by their paths.
  std::map<std::string, std::string> files;
  bool has_run_dir = false;  // local workers outlive their coordinator
  // What the weights of each version are: a letter, of which a checkpoint's path has it at its end.
  std::map<int64_t, char> weights;

  std::function<void(int pid)> on_worker_end;

  // Starts a worker process, which registers at `coordinator`, and returns its pid. `local`: it was started
  // by the coordinator.
  int StartWorker(int rank, const std::string& coordinator, bool local);
  // The live processes of `rank`.
  std::vector<int> LiveWorkers(int rank) const;

 private:
  const WorkerMain worker_main_;
};

}  // namespace somnus::simulation
