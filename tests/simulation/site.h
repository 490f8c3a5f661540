#pragma once
// The shared state of a simulated cluster's parts: the world, the network, the worker processes with their
// future faults, the groups that ranks have formed, and the steps that the groups compute.

#include <cstdint>
#include <deque>
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
#include "tests/simulation/step_watch.h"
#include "tests/simulation/world.h"

namespace somnus {
struct Caller;
class Worker;
}  // namespace somnus

namespace somnus::simulation {

// The simulation's view of one worker process. The objects belong to the process: null before construction
// and after destruction; the objects of a killed process stay unchanged.
struct WorkerProcess {
  int group = 0;  // of a replica, or of a model
  int rank = 0;
  int stage = 0;       // of the pipeline: whose layers the process has loaded
  bool local = false;  // started by a coordinator, on the coordinator's host
  int parent = 0;      // of a local worker: the coordinator that watches the process
  Worker* worker = nullptr;
  FakeVmmDriver* memory = nullptr;
  int64_t device_bytes = 0;              // of weights, workspace and KV cache, as far as mapped
  bool allocates_device_memory = false;  // ranges that are reserved now are for such memory
  std::function<void()> leave;           // the action of SIGTERM
  bool may_end = false;                  // some fault has struck for which a group may replace the worker
  // Faults of the next step, load, change of memory, and message between two stages.
  absl::Status step_error;
  absl::Duration step_hang;
  absl::Duration load_delay;
  bool damage_backup = false;    // before the next restore of weights with a fingerprint
  bool has_fingerprint = false;  // the weights in memory have been computed with since they came
  absl::Status link_error;       // which breaks the link
  bool stalls_link = false;      // for good: the message, and all that follow, are lost
};

// The ranks that have met under a name: the ranks of a stage, or the two ends of a link between stages.
struct RankGroup {
  int world_size = 0;
  std::map<int, int> processes;  // by rank
  absl::Status failure;
  struct Round {
    std::map<int, std::string> data;  // by rank
    int num_left = 0;                 // ranks that have taken the data
  };
  std::map<int64_t, Round> rounds;
  std::deque<std::string> messages;  // that are under way on a link
  size_t most_messages = 0;          // beyond which a sender waits
  bool stalled = false;              // nothing passes on the link any more

  void Fail(const absl::Status& reason);
};

// The weights of each version: a letter, which is also at the end of a checkpoint's path.
using WeightsByVersion = std::map<int64_t, char>;

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
  bool has_stages = false;  // ranks are stages of a pipeline
  int num_layers = 1;       // which the stages divide
  int slow_stage = -1;      // whose steps take longer than in other stages; -1: none
  StepWatch steps;
  int num_replicas = 1;                  // each is a group of ranks
  int num_models = 1;                    // as above; several models have one replica each
  std::map<int, WorkerProcess> workers;  // by pid
  std::map<std::string, std::shared_ptr<RankGroup>> groups;
  // How often somebody has written to the checkpoints' files. A reader finds the old contents, but a rank
  // with the files as backup has lost the backup.
  int64_t touches = 0;
  // The files of run directories, by path.
  std::map<std::string, std::string> files;
  int num_socket_dirs = 0;
  bool has_run_dir = false;                 // local workers outlive the coordinator
  std::map<int, WeightsByVersion> weights;  // by model

  std::function<void(int pid)> on_worker_end;
  // Called whenever a worker has taken device memory. Must not block.
  std::function<void()> on_device_memory;

  // Starts a worker process, which registers at `coordinator`, and returns its pid. `local`: the process was
  // started by the coordinator.
  int StartWorker(int group, int rank, const std::string& coordinator, bool local);
  // The caller of the thread that runs (coordinator/engine/caller.h).
  std::shared_ptr<const Caller>& CallerOfThread() { return callers_[world.current_thread()]; }
  // The live processes of `rank`, of all groups.
  std::vector<int> LiveWorkers(int rank) const;
  std::vector<int> LiveWorkers(int group, int rank) const;

 private:
  // In front of a worker's name, where there are several groups.
  std::string GroupPrefix(int group) const;

  const WorkerMain worker_main_;
  std::map<uint64_t, std::shared_ptr<const Caller>> callers_;  // by thread
};

}  // namespace somnus::simulation
