// Ranges that several threads share: every byte is in one part, and a thread that is held up holds up no part
// of another thread.

#include "allocator/parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"

namespace somnus {
namespace {

constexpr int64_t kMiB = 1 << 20;

struct Parts {
  std::vector<std::pair<int64_t, int64_t>> all;  // in order
  std::set<std::thread::id> threads;
};

Parts RunParts(int64_t bytes, int64_t align, int num_threads) {
  Parts parts;
  absl::Mutex mu;
  ParallelRanges(bytes, align, num_threads, [&](int64_t begin, int64_t end) {
    absl::MutexLock lock(&mu);
    parts.all.emplace_back(begin, end);
    parts.threads.insert(std::this_thread::get_id());
  });
  std::sort(parts.all.begin(), parts.all.end());
  return parts;
}

TEST(ParallelRangesTest, PartsCoverAllAndAreAligned) {
  for (const int64_t bytes : {int64_t{1}, 15 * kMiB, 16 * kMiB, 100 * kMiB + 5, 512 * kMiB}) {
    for (const int num_threads : {1, 2, 7}) {
      const Parts parts = RunParts(bytes, 2 * kMiB, num_threads);
      int64_t end = 0;
      for (const auto& part : parts.all) {
        EXPECT_EQ(part.first, end);
        EXPECT_EQ(part.first % (2 * kMiB), 0);
        EXPECT_GT(part.second, part.first);
        end = part.second;
      }
      EXPECT_EQ(end, bytes);
      EXPECT_LE(static_cast<int>(parts.threads.size()), num_threads);
    }
  }
}

TEST(ParallelRangesTest, WhatIsSmallStaysWithTheCaller) {
  for (const auto& [bytes, num_threads] : {std::pair{15 * kMiB, 8}, std::pair{512 * kMiB, 1}}) {
    const Parts parts = RunParts(bytes, 2 * kMiB, num_threads);
    EXPECT_EQ(parts.all.size(), 1u);
    EXPECT_EQ(parts.threads, std::set<std::thread::id>{std::this_thread::get_id()});
  }
}

// The first part ends when all later parts are done, or after 20 s.
TEST(ParallelRangesTest, OthersTakeOverFromAThreadThatIsHeldUp) {
  constexpr int64_t kBytes = 256 * kMiB;
  absl::Mutex mu;
  int64_t done = 0;
  bool others_were_done = false;
  ParallelRanges(kBytes, 2 * kMiB, 2, [&](int64_t begin, int64_t end) {
    absl::MutexLock lock(&mu);
    if (begin == 0) {
      const auto others = [&done, end] { return done == kBytes - end; };
      others_were_done = mu.AwaitWithTimeout(absl::Condition(&others), absl::Seconds(20));
    }
    done += end - begin;
  });
  EXPECT_TRUE(others_were_done);
  EXPECT_EQ(done, kBytes);
}

}  // namespace
}  // namespace somnus
