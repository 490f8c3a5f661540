// A local worker that does not understand its command line, which the next one would not either.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "coordinator/group/worker_group.h"
#include "tests/fakes/temp_dir.h"

namespace somnus {
namespace {

TEST(RefusedStartTest, IsNotTriedAgainThoughTheProcessEndsBeforeItIsAwaited) {
  const TempDir directory;
  const std::string starts = directory.path() + "/starts", script = directory.path() + "/worker";
  std::ofstream(script) << "#!/bin/sh\necho start >> " << starts << "\nexit 2\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  Flags flags;
  flags.model = "model";
  flags.world_size = 1;
  flags.worker_binary = script;
  flags.preemption = "recompute";
  ModelConfig config;
  config.stored_type = StorageType::kF32;
  WorkerGroup group(flags);
  const absl::Status started = group.Start(config, 64, "f00d");
  ASSERT_TRUE(started.ok()) << started;
  while (!std::filesystem::exists(starts)) absl::SleepFor(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(300));  // its end is known by then; the test holds without, too

  const absl::Status loaded = group.Load().status();
  EXPECT_EQ(loaded.code(), absl::StatusCode::kFailedPrecondition) << loaded;
  EXPECT_TRUE(absl::StrContains(loaded.message(), "exited with code 2")) << loaded;
  std::ifstream file(starts);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "start\n");
}

}  // namespace
}  // namespace somnus
