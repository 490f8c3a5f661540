// The execution model: guarantees to a kernel's threads hold under every schedule, and missing guarantees
// fail under some.

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "tests/cuda/emulator_util.h"

namespace somnus::cuda_emulated {
namespace {

constexpr int kSeeds = 12;

TEST(Threads, EveryIndexRunsOnce) {
  std::vector<int> runs(2 * 3 * 2 * 5 * 3 * 2);
  const dim3 grid(2, 3, 2), block(5, 3, 2);
  ASSERT_EQ(RunKernel(grid, block, 0,
                      [&] {
                        EXPECT_EQ(gridDim.y, 3u);
                        EXPECT_EQ(blockDim.x, 5u);
                        const unsigned b = blockIdx.x + 2 * (blockIdx.y + 3 * blockIdx.z);
                        const unsigned t = threadIdx.x + 5 * (threadIdx.y + 3 * threadIdx.z);
                        EXPECT_EQ(LaneId(), static_cast<int>(t % 32));
                        ++runs[b * 30 + t];
                      }),
            cudaSuccess);
  EXPECT_EQ(runs, std::vector<int>(runs.size(), 1));
}

TEST(Threads, SameSeedSameSchedule) {
  const auto order = [](uint64_t seed) {
    const WithOptions options = WithSeed(seed);
    std::vector<unsigned> seen;
    // A new stream: kernels that ran before on another stream do not count.
    cudaStream_t stream;
    EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    EXPECT_EQ(Queue(
                  7, 40, 0, [&] { seen.push_back(blockIdx.x * 40 + threadIdx.x); }, stream),
              cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    return seen;
  };
  std::set<std::vector<unsigned>> orders;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_EQ(order(seed), order(seed));
    orders.insert(order(seed));
  }
  EXPECT_GT(orders.size(), static_cast<size_t>(kSeeds / 2));
}

// out[b][t] = the value that thread (t + 1) % n wrote to shared memory. Wrong values counted.
int WrongNeighbours(uint64_t seed, bool barrier) {
  constexpr int kThreads = 96, kBlocks = 3;
  const WithOptions options = WithSeed(seed);
  std::vector<float> out(kBlocks * kThreads);
  EXPECT_EQ(RunKernel(kBlocks, kThreads, kThreads * 4,
                      [&] {
                        float* const shared = Shared<float>();
                        shared[threadIdx.x] = static_cast<float>(threadIdx.x);
                        if (barrier) __syncthreads();
                        out[blockIdx.x * kThreads + threadIdx.x] = shared[(threadIdx.x + 1) % kThreads];
                      }),
            cudaSuccess);
  int wrong = 0;
  for (int i = 0; i < kBlocks * kThreads; ++i) {
    if (out[i] != static_cast<float>((i % kThreads + 1) % kThreads)) ++wrong;  // NaN too
  }
  return wrong;
}

TEST(Barriers, MissingOneShows) {
  int seeds_with_errors = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_EQ(WrongNeighbours(seed, true), 0) << seed;
    seeds_with_errors += WrongNeighbours(seed, false) > 0;
  }
  EXPECT_EQ(seeds_with_errors, kSeeds);
}

TEST(Barriers, MissingSecondOneShows) {
  // Two rounds over one buffer: without the barrier between reading and overwriting some thread reads the
  // next round.
  int seeds_with_errors = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const WithOptions options = WithSeed(seed);
    int wrong = 0;
    ASSERT_EQ(RunKernel(1, 64, 64 * 4,
                        [&] {
                          int* const shared = Shared<int>();
                          for (int round = 0; round < 2; ++round) {
                            shared[threadIdx.x] = round;
                            __syncthreads();
                            if (shared[threadIdx.x ^ 63] != round) ++wrong;
                          }
                        }),
              cudaSuccess);
    seeds_with_errors += wrong > 0;
  }
  EXPECT_GT(seeds_with_errors, kSeeds / 2);
}

TEST(Barriers, EndedThreadsDoNotCount) {
  int after = 0;
  ASSERT_EQ(RunKernel(1, 70, 0,
                      [&] {
                        if (threadIdx.x >= 50) return;
                        __syncthreads();
                        ++after;
                      }),
            cudaSuccess);
  EXPECT_EQ(after, 50);
}

TEST(Barriers, NamedOnesSplitABlock) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const WithOptions options = WithSeed(seed);
    // Warp 0 produces for warps 1 and 2, which pass each item on; each stage has a full and an empty barrier.
    std::vector<int> sums(64);
    ASSERT_EQ(RunKernel(1, 96, 32 * 4,
                        [&] {
                          volatile int* const shared = Shared<int>();
                          for (int i = 0; i < 10; ++i) {
                            if (threadIdx.x < 32) {
                              if (i > 0) NamedBarrierSync(2, 96);
                              shared[threadIdx.x] = i * 100 + static_cast<int>(threadIdx.x);
                              NamedBarrierArrive(1, 96);
                            } else {
                              NamedBarrierSync(1, 96);
                              sums[threadIdx.x - 32] += shared[threadIdx.x % 32];
                              if (i < 9) NamedBarrierArrive(2, 96);
                            }
                          }
                        }),
              cudaSuccess);
    for (int i = 0; i < 64; ++i) EXPECT_EQ(sums[i], 4500 + 10 * (i % 32)) << seed;
  }
}

// Outside of the death tests: in a macro's argument all places would be on one line.
void Diverge() {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST(BarriersDeathTest, DivergentSyncThreads) {
  EXPECT_DEATH(
      RunKernel(1, 64, 0, &Diverge),
      "kernel TestKernel<<<.*, thread .*divergent __syncthreads: thread \\(.*\\) of the block waits at "
      ".*emulator_test.cc:[0-9]+, this one at .*emulator_test.cc");
}

TEST(BarriersDeathTest, DeadlockNamesWhoWaitsForWhat) {
  EXPECT_DEATH(
      RunKernel(2, 64, 0,
                [] {
                  if (threadIdx.x < 32) NamedBarrierSync(3, 64);
                  if (threadIdx.x >= 32) __syncthreads();
                }),
      "deadlock, no thread can go on\n.*32 threads wait for NamedBarrierSync at .*emulator_test.cc.*\n"
      ".*32 threads wait for __syncthreads at");
}

TEST(BarriersDeathTest, BadNamedBarriers) {
  EXPECT_DEATH(RunKernel(1, 32, 0, [] { NamedBarrierSync(0, 32); }), "named barrier 0: it may be 1 to 15");
  EXPECT_DEATH(RunKernel(1, 32, 0, [] { NamedBarrierSync(1, 33); }), "not whole warps");
  EXPECT_DEATH(RunKernel(1, 32, 0, [] { NamedBarrierSync(1, 64); }), "not whole warps of this block");
  EXPECT_DEATH(RunKernel(1, 96, 0, [] { NamedBarrierSync(1, threadIdx.x < 32 ? 96 : 64); }), "elsewhere");
}

TEST(SharedMemory, IsFreshNaNsForEveryBlock) {
  int nans = 0;
  ASSERT_EQ(RunKernel(5, 32, 32 * 4,
                      [&] {
                        float* const shared = Shared<float>();
                        nans += std::isnan(shared[threadIdx.x]);
                        shared[threadIdx.x] = 1;
                      }),
            cudaSuccess);
  EXPECT_EQ(nans, 5 * 32);
}

TEST(SharedMemoryDeathTest, MoreThanTheLaunchGave) {
  struct Big {
    float values[64];
  };
  EXPECT_DEATH(RunKernel(1, 32, 128, [] { Shared<Big>()->values[0] = 0; }),
               "uses 256 bytes of shared memory, the launch gave 128");
}

// ---- Warps

TEST(Warps, ShufflesWithinPartialMasks) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const WithOptions options = WithSeed(seed);
    std::vector<int> got(64), from_outside(64);
    ASSERT_EQ(RunKernel(1, 64, 0,
                        [&] {
                          const int t = static_cast<int>(threadIdx.x);
                          // Each half of the warp alone, and at its own pace.
                          const uint32_t mask = t % 32 < 16 ? 0x0000ffff : 0xffff0000;
                          int value = t;
                          for (int i = 0; i < (t % 32 < 16 ? 1 : 3); ++i) value = ShflXor(value, 1, mask);
                          got[t] = value;
                          from_outside[t] = ShflXor(value, 16, mask);
                        }),
              cudaSuccess);
    for (int t = 0; t < 64; ++t) {
      EXPECT_EQ(got[t], t ^ 1);
      EXPECT_EQ(from_outside[t], -1);  // poison
    }
  }
}

TEST(Warps, ShufflesDownUpIndexAndWide) {
  std::vector<int> down(32), up(32), index(32);
  std::vector<double> wide(32);
  ASSERT_EQ(RunKernel(1, 32, 0,
                      [&] {
                        const int t = static_cast<int>(threadIdx.x);
                        down[t] = ShflDown(t, 5);
                        up[t] = ShflUp(t, 3);
                        index[t] = ShflIdx(t, 31 - t);
                        wide[t] = ShflXor(t + 0.25, 8);
                      }),
            cudaSuccess);
  for (int t = 0; t < 32; ++t) {
    EXPECT_EQ(down[t], t + 5 < 32 ? t + 5 : t);
    EXPECT_EQ(up[t], t >= 3 ? t - 3 : t);
    EXPECT_EQ(index[t], 31 - t);
    EXPECT_EQ(wide[t], (t ^ 8) + 0.25);
  }
}

TEST(Warps, Votes) {
  ASSERT_EQ(RunKernel(1, 48, 0,
                      [] {
                        // The second warp has 16 lanes.
                        const uint32_t mask = threadIdx.x < 32 ? kFullMask : 0xffff;
                        EXPECT_EQ(Ballot(threadIdx.x % 3 == 0, mask), [&] {
                          uint32_t bits = 0;
                          for (unsigned i = 0; i < 32; ++i) {
                            if ((mask >> i & 1) != 0 && (threadIdx.x / 32 * 32 + i) % 3 == 0) bits |= 1u << i;
                          }
                          return bits;
                        }());
                        EXPECT_TRUE(AnySync(threadIdx.x % 16 == 7, mask));
                        EXPECT_FALSE(AllSync(threadIdx.x % 16 == 7, mask));
                        EXPECT_TRUE(AllSync(threadIdx.x < 48, mask));
                        EXPECT_FALSE(AnySync(threadIdx.x > 48, mask));
                        SyncWarp(mask);
                      }),
            cudaSuccess);
}

TEST(Warps, MissingSyncWarpShows) {
  for (const bool synced : {true, false}) {
    int seeds_with_errors = 0;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      const WithOptions options = WithSeed(seed);
      int wrong = 0;
      ASSERT_EQ(RunKernel(1, 32, 32 * 4,
                          [&] {
                            volatile int* const shared = Shared<int>();
                            shared[threadIdx.x] = 1;
                            if (synced) SyncWarp();
                            wrong += shared[threadIdx.x ^ 1] != 1;
                          }),
                cudaSuccess);
      seeds_with_errors += wrong > 0;
    }
    EXPECT_EQ(seeds_with_errors, synced ? 0 : kSeeds);
  }
}

TEST(WarpsDeathTest, WrongMasks) {
  EXPECT_DEATH(RunKernel(1, 32, 0, [] { ShflXor(1, 1, 0xfffffffe); }), "leaves out this lane");
  EXPECT_DEATH(RunKernel(1, 40, 0, [] { SyncWarp(); }), "but the warp has lanes 0x000000ff");
  EXPECT_DEATH(RunKernel(1, 32, 0,
                         [] {
                           if (threadIdx.x != 9) Ballot(true);
                         }),
               "(has ended, but lane [0-9]+ waits for it in a vote)|(lanes 0x00000200 have ended)");
  EXPECT_DEATH(RunKernel(1, 32, 0,
                         [] {
                           if (threadIdx.x < 16)
                             ShflXor(1, 1);
                           else
                             ShflDown(1, 1);
                         }),
               "with the same mask");
  EXPECT_DEATH(RunKernel(1, 32, 0,
                         [] {
                           if (threadIdx.x < 31)
                             SyncWarp();
                           else
                             __syncthreads();
                         }),
               "deadlock.*\n.*31 threads wait for SyncWarp at .* with mask 0xffffffff.*\n"
               ".*1 threads wait for __syncthreads");
}

// ---- cp.async

TEST(AsyncCopies, ArriveWithTheWaitThatCoversThem) {
  alignas(16) static int source[3][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}};
  ASSERT_EQ(RunKernel(1, 1, 48,
                      [] {
                        volatile int* const shared = Shared<int>();
                        for (int i = 0; i < 3; ++i) {
                          CpAsync16(const_cast<int*>(shared) + 4 * i, source[i], i != 1);
                          if (i != 1) CpAsyncCommit();  // groups {0} and {1, 2}
                        }
                        EXPECT_EQ(shared[0], -1);
                        CpAsyncWait<1>();
                        EXPECT_EQ(shared[0], 1);
                        EXPECT_EQ(shared[3], 4);
                        EXPECT_EQ(shared[4], -1);
                        CpAsyncWait<0>();
                        EXPECT_EQ(shared[4], 0);  // not valid: zeros
                        EXPECT_EQ(shared[7], 0);
                        EXPECT_EQ(shared[11], 12);
                      }),
            cudaSuccess);
}

TEST(AsyncCopies, OfFourBytes) {
  static int source[2] = {1, 2};
  ASSERT_EQ(RunKernel(1, 1, 16,
                      [] {
                        volatile int* const shared = Shared<int>();
                        shared[2] = 7;
                        CpAsync4(const_cast<int*>(shared) + 1, source + 1);
                        CpAsync4(const_cast<int*>(shared) + 3, source, false);
                        CpAsyncCommit();
                        EXPECT_EQ(shared[1], -1);
                        CpAsyncWait<0>();
                        EXPECT_EQ(shared[1], 2);
                        EXPECT_EQ(shared[2], 7);
                        EXPECT_EQ(shared[3], 0);
                      }),
            cudaSuccess);
}

TEST(AsyncCopiesDeathTest, WrongAddresses) {
  alignas(16) static char source[64];
  EXPECT_DEATH(RunKernel(1, 1, 32, [] { CpAsync16(Shared<char>() + 8, source); }),
               "destination is not aligned");
  EXPECT_DEATH(RunKernel(1, 1, 32, [] { CpAsync16(Shared<char>(), source + 4); }), "source is not aligned");
  EXPECT_DEATH(RunKernel(1, 1, 32, [] { CpAsync16(Shared<char>() + 32, source); }),
               "not in the block's shared memory");
  EXPECT_DEATH(RunKernel(1, 1, 32, [] { CpAsync4(Shared<char>() + 2, source); }),
               "CpAsync4: the destination is not aligned");
  EXPECT_DEATH(RunKernel(1, 1, 32, [] { CpAsync4(Shared<char>() + 32, source); }),
               "not in the block's shared memory");
  EXPECT_DEATH(RunKernel(1, 1, 0, [] { LdGlobalNc16(source + 4); }), "LdGlobalNc16: not aligned");
}

}  // namespace
}  // namespace somnus::cuda_emulated
