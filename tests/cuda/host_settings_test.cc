// Errors about drivers that are too old, and the switches of SOMNUS_CUDA_DISABLE.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "kernels/cuda/debug_switches.h"
#include "kernels/cuda/driver_version.h"

namespace somnus {
namespace {

bool Says(const absl::Status& status, const char* text) {
  return status.message().find(text) != std::string::npos;
}

TEST(DriverVersion, DriversOfTheRuntimesMajorVersionOrLaterServeIt) {
  EXPECT_TRUE(CheckDriverVersion(13000, 13000, "580.65.06").ok());
  EXPECT_TRUE(CheckDriverVersion(13000, 13020, "580.65.06").ok());
  EXPECT_TRUE(CheckDriverVersion(14000, 13000, "").ok());
  EXPECT_TRUE(CheckDriverVersion(12020, 12080, "535.54").ok());
}

TEST(DriverVersion, AnOlderOneIsNamedBesideTheOneThatIsNeeded) {
  const absl::Status status = CheckDriverVersion(12080, 13000, "570.86.15");
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  for (const char* text : {"570.86.15", "12.8", "13.0", "580.65 or newer"})
    EXPECT_TRUE(Says(status, text)) << status;
  EXPECT_TRUE(Says(CheckDriverVersion(11080, 12040, ""), "525.60 or newer"));
}

TEST(DriverVersion, NoDriverIsNotAnOldOne) {
  const absl::Status none = CheckDriverVersion(0, 13000, "");
  EXPECT_TRUE(absl::IsUnavailable(none)) << none;
  EXPECT_TRUE(Says(none, "no NVIDIA driver") && Says(none, "580.65")) << none;
  const absl::Status hidden = CheckDriverVersion(0, 13000, "580.95.05");
  EXPECT_TRUE(absl::IsFailedPrecondition(hidden)) << hidden;
  EXPECT_TRUE(Says(hidden, "580.95.05") && Says(hidden, "libcuda.so.1")) << hidden;
}

TEST(DriverVersion, ReleaseIsThatOfTheKernelModule) {
  const std::string root = testing::TempDir() + "/driver_version";
  std::filesystem::create_directories(root + "/proc/driver/nvidia");
  const auto write = [&](const char* text) { std::ofstream(root + "/proc/driver/nvidia/version") << text; };
  write(
      "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 03:51:07 UTC 2025\nGCC version: "
      "12\n");
  EXPECT_EQ(LoadedDriverRelease(root), "570.86.15");
  write("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@host)\n");
  EXPECT_EQ(LoadedDriverRelease(root), "580.95.05");
  write("nothing of the kind\n");
  EXPECT_EQ(LoadedDriverRelease(root), "");
  EXPECT_EQ(LoadedDriverRelease(root + "/nowhere"), "");
}

TEST(DebugSwitches, AllAreOnByDefault) {
  const auto switches = ParseDebugSwitches("");
  ASSERT_TRUE(switches.ok());
  EXPECT_TRUE(switches->programmatic_launch && switches->fused_all_reduce && switches->cublaslt &&
              switches->peer_memory);
}

TEST(DebugSwitches, NamedOnesAreOff) {
  const auto switches = ParseDebugSwitches("cublaslt, programmatic_launch,");
  ASSERT_TRUE(switches.ok()) << switches.status();
  EXPECT_FALSE(switches->cublaslt || switches->programmatic_launch);
  EXPECT_TRUE(switches->fused_all_reduce && switches->peer_memory);
}

TEST(DebugSwitches, UnknownOnesAreNamedBesideThoseThatThereAre) {
  const auto switches = ParseDebugSwitches("pdl");
  EXPECT_TRUE(absl::IsInvalidArgument(switches.status()));
  EXPECT_TRUE(Says(switches.status(), "'pdl'") && Says(switches.status(), "programmatic_launch"))
      << switches.status();
}

}  // namespace
}  // namespace somnus
