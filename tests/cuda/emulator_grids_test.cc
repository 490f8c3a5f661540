// Blocks and kernels that run at the same time: how kernels may wait for each other, and the overlaps.

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/cuda/emulator_util.h"

namespace somnus::cuda_emulated {
namespace {

constexpr int kSeeds = 12;

// ---- Blocks that meet

TEST(Blocks, AtomicsAddUp) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const WithOptions options = WithSeed(seed);
    uint32_t count = 0, largest = 0;
    float sum = 0;
    int last_block = 0;
    ASSERT_EQ(RunKernel(9, 33, 0,
                        [&] {
                          AtomicAdd(&sum, 0.5f);
                          AtomicMax(&largest, blockIdx.x * 33 + threadIdx.x);
                          if (AtomicAddAcqRel(&count, 1u) == 9 * 33 - 1) ++last_block;
                        }),
              cudaSuccess);
    EXPECT_EQ(sum, 9 * 33 * 0.5f);
    EXPECT_EQ(largest, 9u * 33 - 1);
    EXPECT_EQ(last_block, 1);
  }
}

TEST(Blocks, MayWaitForEachOtherWhenTheChipHoldsThem) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const WithOptions options = WithSeed(seed);
    uint32_t arrived = 0;
    ASSERT_EQ(RunKernel(40, 32, 0,
                        [&] {
                          if (threadIdx.x == 0) {
                            AtomicAddAcqRel(&arrived, 1u);
                            while (LdAcquire(&arrived) < 40) NanoSleep(100);
                          }
                          __syncthreads();
                        }),
              cudaSuccess);
  }
}

TEST(BlocksDeathTest, SpinningForABlockThatCannotStart) {
  const WithOptions options([](emulator::Options& o) { o.num_sms = 1, o.spin_limit_ms = 200; });
  uint32_t arrived = 0;
  // One multiprocessor holds two blocks of 1024 threads.
  EXPECT_DEATH(RunKernel(3, 1024, 0,
                         [&] {
                           if (threadIdx.x == 0) AtomicAdd(&arrived, 1u);
                           while (LdAcquire(&arrived) < 3) NanoSleep(100);
                         }),
               "all threads spin and nothing else is queued");
}

TEST(Grids, OfTwoHostThreadsRunAtTheSameTime) {
  uint32_t turn = 0;
  const auto play = [&](uint32_t me) {
    cudaStream_t stream;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(Queue(
                  2, 32, 0,
                  [&turn, me] {
                    if (threadIdx.x != 0 || blockIdx.x != 0) return;
                    for (uint32_t i = 0; i < 20; ++i) {
                      while (LdAcquire<Scope::kSys>(&turn) != 2 * i + me) NanoSleep(100);
                      StRelease<Scope::kSys>(&turn, 2 * i + me + 1);
                    }
                  },
                  stream),
              cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  };
  std::thread other(play, 1);
  play(0);
  other.join();
  EXPECT_EQ(turn, 40u);
}

TEST(Grids, OfTwoStreamsOfOneHostThreadRunAtTheSameTime) {
  uint32_t turn = 0;
  cudaStream_t streams[2];
  for (uint32_t me : {0u, 1u}) {
    ASSERT_EQ(cudaStreamCreateWithFlags(&streams[me], cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(Queue(
                  1, 1, 0,
                  [&turn, me] {
                    for (uint32_t i = 0; i < 20; ++i) {
                      while (LdAcquire(&turn) != 2 * i + me) NanoSleep(100);
                      StRelease(&turn, 2 * i + me + 1);
                    }
                  },
                  streams[me]),
              cudaSuccess);
  }
  for (cudaStream_t stream : streams) ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(turn, 40u);
  for (cudaStream_t stream : streams) ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// out = in + 1, twice; the second kernel may start early.
int Overlap(uint64_t seed, bool lets_start, bool waits) {
  const WithOptions options = WithSeed(seed);
  std::vector<int> first(256, -100), second(256, -100);
  cudaStream_t stream;
  EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  EXPECT_EQ(Queue(
                8, 32, 0,
                [&first, lets_start] {
                  if (lets_start) GridDependencyLaunch();
                  __syncthreads();
                  first[blockIdx.x * 32 + threadIdx.x] = 1;
                },
                stream),
            cudaSuccess);
  for (int i = 0; i < 2; ++i) {
    std::vector<int>&from = i == 0 ? first : second, &to = i == 0 ? second : first;
    EXPECT_EQ(Queue(
                  8, 32, 0,
                  [&from, &to, waits] {
                    GridDependencyLaunch();
                    if (waits) GridDependencyWait();
                    __syncthreads();
                    to[255 - blockIdx.x * 32 - threadIdx.x] = from[blockIdx.x * 32 + threadIdx.x] + 1;
                  },
                  stream, true),
              cudaSuccess);
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  int wrong = 0;
  for (const int x : first) wrong += x != 3;
  return wrong;
}

TEST(Grids, DependentLaunchesNeedTheirWait) {
  int seeds_with_errors = 0, without_trigger = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_EQ(Overlap(seed, true, true), 0) << seed;
    EXPECT_EQ(Overlap(seed, false, true), 0) << seed;
    seeds_with_errors += Overlap(seed, true, false) > 0;
    without_trigger += Overlap(seed, false, false) > 0;
  }
  EXPECT_GT(seeds_with_errors, kSeeds / 2);
  EXPECT_GT(without_trigger, 0);  // between the second and the third, which does trigger
}

}  // namespace
}  // namespace somnus::cuda_emulated
