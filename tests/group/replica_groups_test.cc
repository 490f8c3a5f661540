// The groups of several replicas, which are started and loaded together, over workers that never register.

#include "coordinator/group/replica_groups.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "tests/fakes/temp_dir.h"

namespace somnus {
namespace {

class ReplicaGroupsTest : public testing::Test {
 protected:
  // Begins the load of two replicas, whose workers are this shell script.
  void BeginLoad(const std::string& script) {
    const std::string path = directory_.path() + "/worker";
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    Flags flags;
    flags.model = "model";
    flags.world_size = 1;
    flags.data_parallel_size = 2;
    flags.worker_binary = path;
    flags.engine.scheduler.preemption = PreemptionMode::kRecompute;
    groups_.emplace(flags);
    const absl::Status started = groups_->Start({.stored_type = StorageType::kF32}, 64, "f00d");
    ASSERT_TRUE(started.ok()) << started;
    loaded_ = std::async(std::launch::async, [this] { return groups_->Load().status(); });
  }

  const TempDir directory_;
  std::optional<ReplicaGroups> groups_;
  std::future<absl::Status> loaded_;
};

TEST_F(ReplicaGroupsTest, TheReasonOfAnInterruptIsNoReplicasError) {
  BeginLoad("exec sleep 1000");
  const absl::Status damaged = absl::InvalidArgumentError("model: tokenizer.json: not JSON");
  groups_->Interrupt(damaged);
  EXPECT_EQ(loaded_.get(), damaged);
}

TEST_F(ReplicaGroupsTest, AnErrorOfAWorkerNamesItsReplica) {
  BeginLoad("exit 2");
  const absl::Status loaded = loaded_.get();
  EXPECT_TRUE(absl::StartsWith(loaded.message(), "replica ")) << loaded;
  EXPECT_TRUE(absl::StrContains(loaded.message(), "exited with code 2")) << loaded;
}

}  // namespace
}  // namespace somnus
