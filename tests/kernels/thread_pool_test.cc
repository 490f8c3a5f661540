// The pool: every thread runs once, results are visible to the caller, sleeping and waking lose nothing.

#include "kernels/cpu/thread_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/cpus.h"
#include "kernels/device.h"

namespace somnus {
namespace {

using cpu::Partition;
using cpu::Range;
using cpu::ThreadPool;

TEST(ThreadPoolTest, EveryThreadRunsOnceAndItsWritesAreSeen) {
  for (const int threads : {1, 2, 3, 4, 7}) {
    for (const bool spin : {false, true}) {
      ThreadPool pool(threads, {}, spin);
      std::vector<int64_t> counts(threads * 16, 0);
      for (int round = 1; round <= 2000; ++round) {
        if (round % 100 == 1) pool.BeginStep();
        pool.Run([&](int t) { ++counts[t * 16]; });
        for (int t = 0; t < threads; ++t) ASSERT_EQ(counts[t * 16], round);
        if (round % 100 == 70) pool.EndStep();
      }
    }
  }
}

TEST(ThreadPoolTest, WakesFromEveryStageOfWaiting) {
  ThreadPool pool(3, {0, 0, 0}, true);
  std::atomic<int> sum{0};
  int expected = 0;
  for (const int microseconds : {0, 1, 10, 30, 100, 300, 1000, 3000, 10000}) {
    for (int round = 0; round < 10; ++round) {
      pool.BeginStep();
      std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
      pool.Run([&](int t) { sum += t; });
      if (round % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
      pool.EndStep();
      pool.Run([&](int t) { sum += t; });
      expected += 6;
      ASSERT_EQ(sum.load(), expected);
    }
  }
}

TEST(ThreadPoolTest, EndsWhileHelpersSpinOrSleep) {
  for (int round = 0; round < 50; ++round) {
    auto pool = std::make_unique<ThreadPool>(3, std::vector<int>{}, true);
    if (round % 2 == 0) pool->BeginStep();
    if (round % 3 == 0) pool->Run([](int) {});
    pool.reset();
  }
}

TEST(ThreadPoolTest, BurnsNothingOutsideSteps) {
  ThreadPool pool(4, {}, true);
  pool.BeginStep();
  pool.Run([](int) {});
  pool.EndStep();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::clock_t before = std::clock();  // CPU time of the process
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 20);
}

void ExpectCovers(const Partition& partition, int64_t total) {
  int64_t next = 0;
  for (int t = 0; t < partition.num_threads(); ++t) {
    const Range part = partition.PartOf(total, t);
    EXPECT_EQ(part.begin, next);
    next = part.end;
    if (part.begin == part.end) continue;
    EXPECT_EQ(partition.OwnerOf(part.begin, total), t);
    EXPECT_EQ(partition.OwnerOf(part.end - 1, total), t);
  }
  EXPECT_EQ(next, total);
}

TEST(ThreadPoolTest, PartsCoverEverythingInOrder) {
  for (const int64_t total : {0, 1, 2, 9, 1000003}) {
    for (const int threads : {1, 2, 3, 64}) {
      ExpectCovers(Partition(threads), total);
      std::vector<double> speeds(threads, 1.0 / 3);
      speeds[0] = 1;
      ExpectCovers(Partition(speeds), total);
    }
  }
}

TEST(ThreadPoolTest, PartsAreInProportionToSpeeds) {
  const Partition partition({1, 1, 0.375, 0.125});
  const int64_t sizes[] = {400, 400, 150, 50};
  for (int t = 0; t < 4; ++t) {
    const Range part = partition.PartOf(1000, t);
    EXPECT_NEAR(static_cast<double>(part.end - part.begin), static_cast<double>(sizes[t]), 1);
  }
  const Range last = partition.PartOf(int64_t{1} << 42, 3);
  EXPECT_EQ(last.end, int64_t{1} << 42);
  EXPECT_NEAR(static_cast<double>(last.end - last.begin) / static_cast<double>(last.end), 0.05, 1e-5);
}

TEST(PiecesTest, EveryItemIsTakenOnce) {
  for (const int threads : {1, 2, 3, 11}) {
    ThreadPool pool(threads, {}, /*spin=*/true);
    cpu::Pieces pieces(threads);
    for (const int64_t total : {0, 1, 2, 5, 16, 100, 1001}) {
      std::vector<std::atomic<int>> taken(static_cast<size_t>(total));
      for (int round = 1; round <= 20; ++round) {
        pieces.Reset(Partition(threads), total, 8);
        pool.Run([&](int t) {
          for (Range piece = pieces.Take(t); piece.begin < piece.end; piece = pieces.Take(t)) {
            for (int64_t item = piece.begin; item < piece.end; ++item) ++taken[static_cast<size_t>(item)];
          }
        });
        for (const std::atomic<int>& count : taken) ASSERT_EQ(count, round) << threads << " " << total;
      }
    }
  }
}

TEST(PiecesTest, AThreadsOwnPartComesFirstAndInOrder) {
  cpu::Pieces pieces(2);
  pieces.Reset(Partition(2), 32, 8);
  for (int64_t begin = 16; begin < 32; begin += 2) EXPECT_EQ(pieces.Take(1).begin, begin);
  EXPECT_EQ(pieces.Take(1).begin, 0);
  EXPECT_EQ(pieces.Take(0).begin, 2);
}

TEST(ThreadPoolTest, TheCallerIsPinnedFromAStepOnUntilItIsLetGo) {
  std::thread([] {
    const std::vector<int> all = AllowedCpus();
    const auto count = [] {
      cpu_set_t set;
      CPU_ZERO(&set);
      EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
      return static_cast<size_t>(CPU_COUNT(&set));
    };
    UnpinThisThread();  // has the pin of the thread that started it
    ThreadPool pool(1, {all.back()}, /*spin=*/false);
    EXPECT_EQ(count(), all.size());
    for (int i = 0; i < 2; ++i) {
      pool.BeginStep();
      pool.EndStep();
      EXPECT_EQ(count(), 1u);
      EXPECT_EQ(sched_getcpu(), all.back());
      pool.UnpinCaller();
      EXPECT_EQ(count(), all.size());
    }
  }).join();
}

// One thread does not get beyond its first piece until all other pieces are done.
TEST(PiecesTest, OthersTakeOverFromAThreadThatIsHeldUp) {
  for (const int held_up : {0, 2}) {
    ThreadPool pool(3, {}, /*spin=*/true);
    cpu::Pieces pieces(3);
    pieces.Reset(Partition(3), 300, 8);
    std::atomic<int64_t> num_done{0}, num_of_held_up{0};
    pool.Run([&](int t) {
      for (Range piece = pieces.Take(t); piece.begin < piece.end; piece = pieces.Take(t)) {
        const int64_t size = piece.end - piece.begin;
        if (t == held_up) {
          num_of_held_up += size;
          for (int i = 0; i < 20000 && num_done < 300 - size; ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        num_done += size;
      }
    });
    EXPECT_EQ(num_done, 300);
    EXPECT_LE(num_of_held_up, 13)
        << "the first of eight pieces of 100 items, unless it came too late for that";
  }
}

TEST(CpuDeviceTest, ChecksItsOptions) {
  CpuDeviceOptions options{.num_threads = -1};
  EXPECT_EQ(Device::CreateCpu(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.num_threads = 100000;
  EXPECT_EQ(Device::CreateCpu(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.num_threads = 2;
  for (const std::vector<double>& speeds : {std::vector<double>{1}, {1, 0}, {1, 1.5}, {1, NAN}}) {
    options.thread_speeds = speeds;
    EXPECT_EQ(Device::CreateCpu(options).status().code(), absl::StatusCode::kInvalidArgument);
  }
  options.thread_speeds = {1, 0.4};
  const std::string name(CpuIsaName(kCpuIsas[0]));
  setenv("SOMNUS_CPU_ISA", name.c_str(), 1);
  const auto device = Device::CreateCpu(options);
  unsetenv("SOMNUS_CPU_ISA");
  ASSERT_TRUE(device.ok());
  EXPECT_EQ((*device)->Describe(), "cpu, 2 threads, " + name);
  EXPECT_EQ((*device)->kind(), DeviceKind::kCpu);
  EXPECT_TRUE((*device)->Synchronize().ok());
}

TEST(CpuDeviceTest, TheEnvironmentForcesAnInstructionSet) {
  CpuDeviceOptions options{.num_threads = 1};
  std::string best;
  for (const CpuIsa isa : kCpuIsas) {
    const std::string name(CpuIsaName(isa));
    options.isa = isa;
    const bool has = Device::CreateCpu(options).ok();
    options.isa = CpuIsa::kBest;
    setenv("SOMNUS_CPU_ISA", name.c_str(), 1);
    const auto device = Device::CreateCpu(options);
    unsetenv("SOMNUS_CPU_ISA");
    EXPECT_EQ(device.ok(), has) << name;
    if (has) {
      best = name;
      EXPECT_EQ((*device)->Describe(), "cpu, 1 thread, " + name);
    } else {
      EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(std::string(device.status().message()),
                  testing::StartsWith("SOMNUS_CPU_ISA is \"" + name + "\", which this CPU lacks"));
    }
  }
  EXPECT_EQ((*Device::CreateCpu(options))->Describe(), "cpu, 1 thread, " + best);
}

#if defined(__x86_64__)
// The part of AMX in a signal's frame does not fit into so small a stack, so Linux refuses tiles to the
// process.
TEST(CpuDeviceTest, DoesWithoutTilesThatAreRefused) {
  if (!__builtin_cpu_supports("amx-tile")) GTEST_SKIP() << "this CPU has no AMX";
  testing::FLAGS_gtest_death_test_style = "threadsafe";  // a fresh process, which has no tiles yet
  const auto without_tiles = [] {
    static char stack[2048];
    const stack_t small{.ss_sp = stack, .ss_flags = 0, .ss_size = sizeof(stack)};
    sigaltstack(&small, nullptr);
    std::fprintf(stderr, "best is %s\n", ChosenCpuIsaName()->c_str());
    setenv("SOMNUS_CPU_ISA", "amx", 1);
    std::fprintf(stderr, "%s\n", std::string(ChosenCpuIsaName().status().message()).c_str());
    std::_Exit(0);
  };
  EXPECT_EXIT(
      without_tiles(), testing::ExitedWithCode(0),
      "best is avx512_bf16\n"
      "SOMNUS_CPU_ISA is \"amx\", which the operating system refuses to this process .*; it may be one "
      "of portable, avx2, avx_vnni, avx512, avx512_vnni, avx512_bf16\n");
}

#endif

TEST(CpuDeviceTest, NamesWhatTheEnvironmentMaySay) {
#if defined(__aarch64__)
  const std::string names = "neon, neon_dotprod, neon_bf16", other = "avx2";
#else
  const std::string names = "portable, avx2, avx_vnni, avx512, avx512_vnni, avx512_bf16, amx", other = "neon";
#endif
  for (const std::string& name : {std::string("abacus"), std::string("best"), other}) {
    setenv("SOMNUS_CPU_ISA", name.c_str(), 1);
    const absl::Status status = Device::CreateCpu({}).status();
    unsetenv("SOMNUS_CPU_ISA");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(status.message()), "SOMNUS_CPU_ISA is \"" + name + "\"; it may be one of " + names);
  }
}

}  // namespace
}  // namespace somnus
