#pragma once
// Ranks of a tiny model in this process, a Worker each, driven like ranks of a coordinator: the ranks
// generate tokens, lose a rank, and go on in the next epoch with a newcomer in the place of the lost rank.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/worker.h"

namespace somnus {

class RejoinGroup {
 public:
  struct Options {
    int world_size = 2;
    bool batch_invariant = false;
    std::vector<int32_t> graph_sizes;
    int num_blocks = 8;  // of the KV cache
    // Makes a rank's Worker, like that of a new process.
    std::function<std::unique_ptr<Worker>()> new_worker;
  };
  explicit RejoinGroup(Options options);

  // Epoch 1: every rank from a new process to Awake.
  absl::Status Form();
  // Ends a rank, as if the process were gone.
  void Lose(int rank) { workers_[rank].reset(); }
  // The next epoch: survivors are fenced, lost ranks are replaced, all join, and new ranks are brought to the
  // survivors' `sleep_level` (0: awake).
  absl::Status Recover(int sleep_level);

  absl::Status Sleep(int level);
  absl::Status WakeUp();
  // Afterwards the first `num_blocks` blocks of the cache have memory.
  absl::Status ResizeKvCache(int num_blocks);
  // A prompt and `count` greedy tokens. A rank `absent` that is not -1 gets no step after the prompt's, and
  // the result is the error of a present rank.
  absl::StatusOr<std::vector<int32_t>> Generate(int count, int absent = -1);
  // As Generate, but after each token all ranks sleep and keep the sequence's blocks, and the sequence goes
  // on after the wake-up: no token is computed twice.
  absl::StatusOr<std::vector<int32_t>> GenerateOverSleeps(int count);

  Worker& worker(int rank) { return *workers_[rank]; }

 private:
  // Calls `call` for every rank that `ranks` says, all at once; returns the first error.
  absl::Status OnRanks(const std::vector<bool>& ranks, const std::function<absl::Status(int rank)>& call);
  // Loads the rank: asleep, with all tags, where the level is not 0.
  absl::Status LoadRank(int rank, int sleep_level);
  absl::Status AllocateRank(int rank, bool defer_graphs);
  // Both phases of a sleep, or of a wake-up (level 0), on one rank. `keeps`: the sequence's blocks outlive
  // the sleep.
  absl::Status Transit(int rank, int sleep_level, bool keeps = false);
  // The step on all ranks but `absent`; rank 0's reply, or an error.
  absl::StatusOr<v1::StepReply> Step(v1::StepRequest request, int absent);

  const Options options_;
  std::vector<std::unique_ptr<Worker>> workers_;
  int64_t epoch_ = 0;
  int64_t last_step_ = 0;
  std::atomic<uint64_t> last_transition_{0};
};

}  // namespace somnus
