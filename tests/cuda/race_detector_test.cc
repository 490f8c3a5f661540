// Kernels with a single fault each, which the race detector names, and their right versions, in which the
// race detector finds nothing. This file is instrumented like the product's kernels.

#include "kernels/emulator/race_detector.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/emulator/barrier_sites.h"
#include "tests/cuda/emulator_util.h"

namespace somnus::cuda_emulated {
namespace {

constexpr int kThreads = 64;

// Every test runs in several schedules.
class RaceDetectorTest : public testing::TestWithParam<uint64_t> {
 protected:
  const WithOptions seed_ = WithSeed(GetParam());
};

// Each thread reads the value that its right neighbour wrote to shared memory.
void ReadNeighbour(bool barrier, int* out) {
  int* const shared = Shared<int>();
  const int i = static_cast<int>(threadIdx.x);
  shared[i] = i;
  if (barrier) __syncthreads();
  out[i] = shared[(i + 1) % kThreads];
}

TEST_P(RaceDetectorTest, SharedMemoryWithoutBarrier) {
  std::vector<int> out(kThreads);
  EXPECT_EQ(RunKernel(1, kThreads, kThreads * 4, [&] { ReadNeighbour(true, out.data()); }), cudaSuccess);
  EXPECT_DEATH(
      RunKernel(1, kThreads, kThreads * 4, [&] { ReadNeighbour(false, out.data()); }),
      "race in shared memory.*\n.*block 0 thread [0-9]+ (reads|writes) at race_detector_test.cc:[0-9]+"
      "\n.*thread [0-9]+ (reads|writes) at race_detector_test.cc:[0-9]+\n.*nothing orders");
}

// A loop that uses a buffer again needs the barrier at the end as much as the barrier in the middle.
void Rounds(bool last_barrier, int* out) {
  int* const shared = Shared<int>();
  const int i = static_cast<int>(threadIdx.x);
  for (int round = 0; round < 3; ++round) {
    shared[i] = round;
    __syncthreads();
    out[i] += shared[(i + 32) % kThreads];
    if (last_barrier) __syncthreads();
  }
}

TEST_P(RaceDetectorTest, BufferThatIsUsedAgain) {
  std::vector<int> out(kThreads);
  EXPECT_EQ(RunKernel(1, kThreads, kThreads * 4, [&] { Rounds(true, out.data()); }), cudaSuccess);
  EXPECT_DEATH(RunKernel(1, kThreads, kThreads * 4, [&] { Rounds(false, out.data()); }),
               "race in shared memory");
}

TEST_P(RaceDetectorTest, ShufflesOrderNoMemory) {
  const auto kernel = [](bool sync, int* out) {
    int* const shared = Shared<int>();
    const int i = static_cast<int>(threadIdx.x);
    shared[i] = i;
    out[i] = ShflXor(i, 1);
    if (sync) SyncWarp();
    out[i] += shared[i ^ 1];
  };
  std::vector<int> out(32);
  EXPECT_EQ(RunKernel(1, 32, 128, [&] { kernel(true, out.data()); }), cudaSuccess);
  EXPECT_DEATH(RunKernel(1, 32, 128, [&] { kernel(false, out.data()); }), "race in shared memory");
}

// SyncWarp orders the lanes of a single warp.
TEST_P(RaceDetectorTest, SyncWarpAmongWarps) {
  std::vector<int> out(kThreads);
  const auto kernel = [&](int distance) {
    int* const shared = Shared<int>();
    const int i = static_cast<int>(threadIdx.x);
    shared[i] = i;
    SyncWarp();
    out[i] = shared[(i ^ distance) % kThreads];
  };
  EXPECT_EQ(RunKernel(1, kThreads, kThreads * 4, [&] { kernel(1); }), cudaSuccess);
  EXPECT_DEATH(RunKernel(1, kThreads, kThreads * 4, [&] { kernel(32); }), "race in shared memory");
}

TEST_P(RaceDetectorTest, GlobalMemoryAmongBlocks) {
  std::vector<int> out(4);
  // Barriers order a block's own threads alone.
  const auto kernel = [&](bool own) {
    __syncthreads();
    if (threadIdx.x == 0) out[own ? blockIdx.x : 0] = 1;
  };
  EXPECT_EQ(RunKernel(4, 32, 0, [&] { kernel(true); }), cudaSuccess);
  EXPECT_DEATH(RunKernel(4, 32, 0, [&] { kernel(false); }), "race in global memory");
}

TEST_P(RaceDetectorTest, MemoryThatIsSharedOnPurposeIsPassedOver) {
  std::vector<int> out(8);
  const auto kernel = [&](int at) { out[static_cast<size_t>(at)] = 1; };
  emulator::PassOverRaces(&out[2], 3 * sizeof(int));
  for (const int at : {2, 3, 4}) EXPECT_EQ(RunKernel(4, 32, 0, [&] { kernel(at); }), cudaSuccess);
  EXPECT_DEATH(RunKernel(4, 32, 0, [&] { kernel(1); }), "race in global memory");
  EXPECT_DEATH(RunKernel(4, 32, 0, [&] { kernel(5); }), "race in global memory");
  emulator::FindRacesAgain(&out[0], 2 * sizeof(int));  // ends before the range
  EXPECT_EQ(RunKernel(4, 32, 0, [&] { kernel(3); }), cudaSuccess);
  emulator::FindRacesAgain(&out[1], 2 * sizeof(int));
  EXPECT_DEATH(RunKernel(4, 32, 0, [&] { kernel(3); }), "race in global memory");
}

TEST(RaceDetector, FreedMemoryIsWatchedAgain) {
  const size_t bytes = size_t{2} << 20;  // whole pages have a separate mapping
  int* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, bytes), cudaSuccess);
  const auto run = [&] { return RunKernel(4, 32, 0, [&] { *data = 1; }); };
  emulator::PassOverRaces(data, 64);
  EXPECT_EQ(run(), cudaSuccess);
  ASSERT_EQ(cudaFree(data), cudaSuccess);
  ASSERT_EQ(
      mmap(data, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
      data);
  EXPECT_DEATH(run(), "race in global memory");
  munmap(data, bytes);
}

TEST_P(RaceDetectorTest, AtomicsAreNoRace) {
  int count = 0, plain = 0;
  EXPECT_EQ(RunKernel(4, 32, 0, [&] { AtomicAdd(&count, 1); }), cudaSuccess);
  EXPECT_EQ(count, 128);
  EXPECT_DEATH(RunKernel(2, 1, 0,
                         [&] {
                           if (blockIdx.x == 0)
                             AtomicAdd(&plain, 1);
                           else
                             plain = 5;
                         }),
               "race in global memory(.*\n)*.*updates atomically");
}

// Copied bytes are there for the thread that waited, and for the further threads behind a barrier.
TEST_P(RaceDetectorTest, AsynchronousCopies) {
  std::vector<int> in(kThreads, 7), out(kThreads);
  const auto kernel = [&](bool barrier) {
    int* const shared = Shared<int>();
    const int i = static_cast<int>(threadIdx.x);
    CpAsync4(&shared[i], &in[i]);
    CpAsyncCommit();
    CpAsyncWait<0>();
    if (barrier) __syncthreads();
    out[i] = shared[(i + 1) % kThreads];
  };
  EXPECT_EQ(RunKernel(1, kThreads, kThreads * 4, [&] { kernel(true); }), cudaSuccess);
  EXPECT_DEATH(RunKernel(1, kThreads, kThreads * 4, [&] { kernel(false); }), "race in shared memory");
}

// The lane that gives a row's address reads that row.
TEST_P(RaceDetectorTest, LdMatrixReadsRows) {
  const auto kernel = [](bool barrier) {
    uint16_t* const shared = Shared<uint16_t>();
    const int lane = static_cast<int>(threadIdx.x);
    for (int i = 0; i < 8; ++i) shared[lane * 8 + i] = static_cast<uint16_t>(lane);
    SyncWarp();
    uint32_t registers[4];
    LdMatrixX4(registers, shared + (lane ^ 1) * 8);
    if (barrier) SyncWarp();
    shared[lane * 8] = static_cast<uint16_t>(registers[0]);
  };
  EXPECT_EQ(RunKernel(1, 32, 512, [&] { kernel(true); }), cudaSuccess);
  EXPECT_DEATH(RunKernel(1, 32, 512, [&] { kernel(false); }), "race in shared memory");
}

// A kernel that starts early may not touch memory that the kernel in front writes, before the wait.
TEST_P(RaceDetectorTest, ProgrammaticLaunch) {
  std::vector<int> data(32), out(32);
  const auto run = [&](bool wait) {
    EXPECT_EQ(Queue(1, 32, 0,
                    [&] {
                      GridDependencyLaunch();
                      SyncWarp();
                      data[threadIdx.x] = 1;
                    }),
              cudaSuccess);
    EXPECT_EQ(Queue(
                  1, 32, 0,
                  [&, wait] {
                    if (wait) GridDependencyWait();
                    out[threadIdx.x] = data[threadIdx.x];
                  },
                  nullptr, /*overlaps_previous=*/true),
              cudaSuccess);
    return cudaDeviceSynchronize();
  };
  EXPECT_EQ(run(true), cudaSuccess);
  // The second kernel does not start early in every schedule.
  EXPECT_DEATH(
      {
        for (uint64_t seed = 0; seed < 50; ++seed) {
          const WithOptions options = WithSeed(seed);
          EXPECT_EQ(run(false), cudaSuccess);
        }
      },
      "race in global memory(.*\n)*.*which still runs");
}

// A counter of arrived blocks: the last block reads the parts that all blocks have written.
TEST_P(RaceDetectorTest, LastBlockOfACounter) {
  std::vector<int> parts(5);
  uint32_t arrived = 0;
  int sum = 0;
  EXPECT_EQ(RunKernel(5, 1, 0,
                      [&] {
                        parts[blockIdx.x] = 1;
                        if (AtomicAddAcqRel(&arrived, 1u) + 1 != gridDim.x) return;
                        for (const int part : parts) sum += part;
                      }),
            cudaSuccess);
  EXPECT_EQ(sum, 5);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RaceDetectorTest, testing::Values(1, 2, 3));

TEST(RaceDetector, CanBeTurnedOff) {
  const WithOptions options([](emulator::Options& o) { o.find_races = false; });
  std::vector<int> out(kThreads);
  EXPECT_EQ(RunKernel(1, kThreads, kThreads * 4, [&] { ReadNeighbour(false, out.data()); }), cudaSuccess);
}

// Two barriers next to each other order the same accesses, so that none of the two is needed.
TEST(BarrierSites, TellsWhichAreNeeded) {
  const std::string path = testing::TempDir() + "/barriers.txt";
  std::remove(path.c_str());  // of an earlier run
  const auto run = [&] {
    setenv("SOMNUS_EMULATOR_BARRIERS", path.c_str(), 1);
    std::vector<int> out(kThreads);
    const cudaError_t error = RunKernel(1, kThreads, kThreads * 4, [&] {
      int* const shared = Shared<int>();
      const int i = static_cast<int>(threadIdx.x);
      shared[i] = i;
      __syncthreads();  // first
      out[i] = shared[(i + 32) % kThreads];
      __syncthreads();  // second
      __syncthreads();  // third
      shared[i] = 1;
    });
    std::exit(error == cudaSuccess ? 0 : 1);
  };
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
  std::ifstream file(path);
  std::vector<std::string> words;
  for (std::string line; std::getline(file, line);) words.push_back(line.substr(0, line.find(' ')));
  EXPECT_EQ(words, (std::vector<std::string>{"needed", "ran", "ran"}));
}

}  // namespace
}  // namespace somnus::cuda_emulated
