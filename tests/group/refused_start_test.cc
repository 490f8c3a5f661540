// Local workers that end at the start: a worker with a cause that recurs is started once, and otherwise a few
// times; the error says why.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/group/worker_group.h"
#include "tests/fakes/temp_dir.h"

namespace somnus {
namespace {

class RefusedStartTest : public testing::Test {
 protected:
  // Starts a group whose worker is this shell script.
  void Start(const std::string& script) {
    const std::string path = directory_.path() + "/worker";
    std::ofstream(path) << "#!/bin/sh\necho start >> " << starts_path() << "\n" << script << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    Flags flags;
    flags.model = "model";
    flags.world_size = 1;
    flags.worker_binary = path;
    flags.engine.scheduler.preemption = PreemptionMode::kRecompute;
    ModelConfig config{.stored_type = StorageType::kF32};
    group_ = std::make_unique<WorkerGroup>(flags);
    const absl::Status started = group_->Start(config, 64, "f00d");
    ASSERT_TRUE(started.ok()) << started;
  }
  absl::Status Load() { return group_->Load().status(); }
  std::string starts_path() const { return directory_.path() + "/starts"; }
  std::string Starts() const {
    std::ifstream file(starts_path());
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

 private:
  const TempDir directory_;
  std::unique_ptr<WorkerGroup> group_;
};

TEST_F(RefusedStartTest, IsNotTriedAgainThoughTheProcessEndsBeforeItIsAwaited) {
  Start("exit 2");
  while (!std::filesystem::exists(starts_path())) absl::SleepFor(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(300));  // the end is known by then; the test holds without, too

  const absl::Status loaded = Load();
  EXPECT_EQ(loaded.code(), absl::StatusCode::kFailedPrecondition) << loaded;
  EXPECT_TRUE(absl::StrContains(loaded.message(), "exited with code 2")) << loaded;
  EXPECT_EQ(Starts(), "start\n");
}

TEST_F(RefusedStartTest, AnInstructionThatTheCpuLacksIsNamedWithItsSetOnce) {
  Start("echo cpu_isa=avx512 >&$SOMNUS_LAST_WORDS; kill -ILL $$");
  const absl::Status loaded = Load();
  EXPECT_EQ(loaded.code(), absl::StatusCode::kFailedPrecondition) << loaded;
  EXPECT_TRUE(absl::StrContains(loaded.message(),
                                "killed by signal 4 (Illegal instruction) while it computed with avx512"))
      << loaded;
  EXPECT_TRUE(absl::StrContains(loaded.message(), "SOMNUS_CPU_ISA=")) << loaded;
  EXPECT_EQ(Starts(), "start\n");
}

TEST_F(RefusedStartTest, WhatTheWorkerSaysOfItsConfigurationIsTheError) {
  Start("echo 'recurs=--device=cuda, GPU 0: this build has no CUDA' >&$SOMNUS_LAST_WORDS; exit 1");
  const absl::Status loaded = Load();
  EXPECT_TRUE(
      absl::EndsWith(loaded.message(), ") exited with code 1: --device=cuda, GPU 0: this build has no CUDA"))
      << loaded;
  EXPECT_EQ(Starts(), "start\n");
}

TEST_F(RefusedStartTest, AProgramThatIsNotFoundIsStartedOnce) {
  Start("exec /no/such/program");
  const absl::Status loaded = Load();
  EXPECT_TRUE(absl::StrContains(loaded.message(), "exited with code 127")) << loaded;
  EXPECT_EQ(Starts(), "start\n");
}

TEST_F(RefusedStartTest, AnEndWithoutAKnownCauseIsTriedAFewTimes) {
  Start("kill -SEGV $$");
  const absl::Status loaded = Load();
  EXPECT_TRUE(absl::StrContains(loaded.message(), "killed by signal 11")) << loaded;
  EXPECT_EQ(Starts(), "start\nstart\nstart\n");
}

}  // namespace
}  // namespace somnus
