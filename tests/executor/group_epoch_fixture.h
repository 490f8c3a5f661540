#pragma once
// An epoch over fake workers.

#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "coordinator/executor/group_epoch.h"
#include "tests/fakes/fake_worker_service.h"
#include "tests/fakes/temp_dir.h"

namespace somnus {

// The residency of a group after a Sleep at `level`.
inline Residency Slept(int level) {
  Residency residency;
  residency.Slept({.level = level});
  return residency;
}

class GroupEpochTest : public ::testing::Test {
 protected:
  void TearDown() override {
    epoch_.reset();
    workers_.clear();
  }

  // `over_tcp`: not through Unix sockets, so that a worker's host counts.
  void Connect(int world_size, absl::Duration blame_grace = absl::Milliseconds(50),
               v1::DeviceType device = v1::DEVICE_TYPE_CPU, bool over_tcp = false) {
    std::vector<WorkerLink> links;
    for (int rank = 0; rank < world_size; ++rank) {
      workers_.push_back(std::make_unique<FakeWorkerService>(
          FakeWorkerOptions(), over_tcp ? "" : directory_.path() + "/" + std::to_string(rank)));
      links.push_back(
          MakeWorkerLink(rank, {workers_.back()->address(), absl::StrCat("host", rank), 70 + rank, device}));
    }
    options_.blame_grace = blame_grace;
    BeginEpoch(1, links);
  }

  // Epoch `number` over `links`: connected and fenced.
  void BeginEpoch(int64_t number, const std::vector<WorkerLink>& links) {
    epoch_ = std::make_unique<GroupEpoch>(number, links, options_);
    const absl::Status connected = epoch_->AwaitConnections();
    ASSERT_TRUE(connected.ok()) << connected;
    const auto snapshots = epoch_->Fence();
    ASSERT_TRUE(snapshots.ok()) << snapshots.status();
    snapshots_ = *snapshots;
  }

  absl::StatusOr<TransitionReport> Sleep(int level, const std::vector<std::string>& tags = {}) {
    return epoch_->Sleep({.level = level, .tags = tags}, host_tier_, &committed_);
  }
  absl::StatusOr<TransitionReport> WakeUp(const std::vector<std::string>& tags = {}) {
    return epoch_->WakeUp(tags, /*reads_weights=*/true, host_tier_, &committed_);
  }
  static Ranks All(int world_size) { return Ranks(world_size, true); }

  // Step 1 computes a prompt of three tokens; each later step decodes.
  v1::StepRequest MakeStep(int64_t step_id) {
    v1::StepRequest step;
    step.set_step_id(step_id);
    if (step_id == 1) {
      v1::NewSequence* sequence = step.add_new_sequences();
      for (int32_t token : {1, 2, 3}) sequence->add_token_ids(token);
      sequence->set_num_prompt_tokens(3);
      for (int32_t block = 1; block < 10; ++block) sequence->add_block_ids(block);
      v1::StepSampling* sampling = step.add_samplings();
      sampling->set_num_logprobs(-1);
      sampling->set_num_prompt_logprobs(-1);
    }
    v1::ScheduledSequence* scheduled = step.add_sequences();
    scheduled->set_num_tokens(step_id == 1 ? 3 : 1);
    return step;
  }
  // Sends that step to an epoch or an executor.
  template <typename Group>
  absl::Status Send(Group& group, int64_t step_id) {
    v1::StepRequest step = MakeStep(step_id);
    return group.ExecuteAsync(&step);
  }

  // Returns the state that each rank reports: "awake", or "asleep" followed by the tags that are still
  // resident.
  std::vector<std::string> RankStates() {
    std::vector<std::string> states;
    for (const auto& status : epoch_->RankStatuses(absl::Minutes(1))) {
      states.push_back(status.ok() ? status->state() : std::string(status.status().message()));
      if (!status.ok() || status->state() == "awake") continue;
      const std::map<std::string, int64_t> bytes(status->bytes_by_tag().begin(),
                                                 status->bytes_by_tag().end());
      for (const auto& [tag, count] : bytes) {
        if (count > 0) absl::StrAppend(&states.back(), " ", tag);
      }
    }
    return states;
  }

  const TempDir directory_;
  ExecutorOptions options_;
  HostTierBlocks host_tier_;  // of Sleep and WakeUp
  std::atomic<bool> committed_{false};
  std::vector<v1::WorkerSnapshot> snapshots_;  // the result of the last Fence
  std::vector<std::unique_ptr<FakeWorkerService>> workers_;
  std::unique_ptr<GroupEpoch> epoch_;
};

}  // namespace somnus
