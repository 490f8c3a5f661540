// The C interface, over host memory, and the rest that many cycles leave in the process.

#include "allocator/somnus_allocator.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace somnus {
namespace {

constexpr int64_t kMiB = 1 << 20;

struct Destroy {
  void operator()(somnus_allocator* allocator) const { somnus_destroy(allocator); }
};
using Allocator = std::unique_ptr<somnus_allocator, Destroy>;

Allocator Make(const somnus_options& options) {
  somnus_allocator* made = nullptr;
  EXPECT_EQ(somnus_create(&options, &made), SOMNUS_OK) << somnus_last_error();
  return Allocator(made);
}

char* Allocate(const Allocator& allocator, const char* tag, int64_t bytes) {
  void* data = nullptr;
  EXPECT_EQ(somnus_allocate(allocator.get(), tag, bytes, &data), SOMNUS_OK) << somnus_last_error();
  return static_cast<char*>(data);
}

somnus_tag_stats Stats(const Allocator& allocator, const char* tag) {
  somnus_tag_stats stats;
  EXPECT_EQ(somnus_stats(allocator.get(), tag, &stats), SOMNUS_OK);
  return stats;
}

const char* const kTags[] = {"weights", "kv_cache"};
const int32_t kLevel1[] = {SOMNUS_BACKUP, SOMNUS_DISCARD};

TEST(SomnusAllocator, SleepsAndWakes) {
  const Allocator allocator = Make({});
  char* const weights = Allocate(allocator, "weights", 4 * kMiB);
  Allocate(allocator, "kv_cache", 8 * kMiB);
  std::memset(weights, 'w', 4 * kMiB);
  ASSERT_EQ(somnus_sleep(allocator.get(), kTags, kLevel1, 2), SOMNUS_OK) << somnus_last_error();
  EXPECT_EQ(Stats(allocator, "weights").resident, 0);
  EXPECT_EQ(Stats(allocator, "weights").host_backup, 4 * kMiB);
  EXPECT_EQ(Stats(allocator, "kv_cache").sleeping, 8 * kMiB);
  ASSERT_EQ(somnus_wake(allocator.get(), kTags, 1), SOMNUS_OK) << somnus_last_error();
  EXPECT_EQ(weights[0] + weights[4 * kMiB - 1], 2 * 'w');
  EXPECT_EQ(Stats(allocator, "kv_cache").resident, 0);
  ASSERT_EQ(somnus_wake(allocator.get(), nullptr, 0), SOMNUS_OK);
  EXPECT_EQ(Stats(allocator, "kv_cache").resident, 8 * kMiB);
  EXPECT_EQ(somnus_free(allocator.get(), weights), SOMNUS_OK);
  EXPECT_EQ(Stats(allocator, "weights").host_backup, 0);
}

TEST(SomnusAllocator, RowsShrinkAndGrow) {
  const Allocator allocator = Make({});
  void* data = nullptr;
  ASSERT_EQ(somnus_allocate_rows(allocator.get(), "kv_cache", 16 * kMiB, 2, 16 * kMiB, &data), SOMNUS_OK);
  char* const rows = static_cast<char*>(data);
  rows[0] = rows[16 * kMiB] = 'k';
  ASSERT_EQ(somnus_resize(allocator.get(), data, 4 * kMiB), SOMNUS_OK) << somnus_last_error();
  EXPECT_EQ(Stats(allocator, "kv_cache").resident, 8 * kMiB);
  ASSERT_EQ(somnus_resize(allocator.get(), data, 16 * kMiB), SOMNUS_OK) << somnus_last_error();
  EXPECT_EQ(Stats(allocator, "kv_cache").resident, 32 * kMiB);
  EXPECT_EQ(rows[0] + rows[16 * kMiB], 2 * 'k');
  rows[32 * kMiB - 1] = 'k';
  EXPECT_EQ(somnus_resize(allocator.get(), data, 17 * kMiB), SOMNUS_INVALID_ARGUMENT);
}

TEST(SomnusAllocator, TwoPhases) {
  const Allocator allocator = Make({});
  char* const weights = Allocate(allocator, "weights", 2 * kMiB);
  weights[5] = 'w';
  ASSERT_EQ(somnus_prepare_sleep(allocator.get(), kTags, kLevel1, 2), SOMNUS_OK);
  EXPECT_EQ(somnus_prepare_wake(allocator.get(), nullptr, 0), SOMNUS_FAILED_PRECONDITION);
  EXPECT_NE(std::string(somnus_last_error()), "");
  somnus_abort_sleep(allocator.get());
  EXPECT_EQ(weights[5], 'w');
  ASSERT_EQ(somnus_prepare_sleep(allocator.get(), kTags, kLevel1, 2), SOMNUS_OK);
  somnus_commit_sleep(allocator.get());
  EXPECT_EQ(Stats(allocator, "weights").resident, 0);
  ASSERT_EQ(somnus_prepare_wake(allocator.get(), nullptr, 0), SOMNUS_OK);
  somnus_abort_wake(allocator.get());
  EXPECT_EQ(Stats(allocator, "weights").resident, 0);
  ASSERT_EQ(somnus_prepare_wake(allocator.get(), nullptr, 0), SOMNUS_OK);
  somnus_commit_wake(allocator.get());
  EXPECT_EQ(weights[5], 'w');
  weights[5] = 'x';
  EXPECT_EQ(somnus_drop_backups(allocator.get(), "weights"), SOMNUS_OK);
  ASSERT_EQ(somnus_sleep(allocator.get(), kTags, kLevel1, 2), SOMNUS_OK);
  ASSERT_EQ(somnus_wake(allocator.get(), nullptr, 0), SOMNUS_OK);
  EXPECT_EQ(weights[5], 'x');
}

TEST(SomnusAllocator, TagsOfThreads) {
  const Allocator allocator = Make({});
  Allocate(allocator, nullptr, kMiB);
  EXPECT_EQ(Stats(allocator, "default").resident, 2 * kMiB) << "rounded up to a huge page";
  somnus_push_tag("outer");
  somnus_push_tag("inner");
  Allocate(allocator, nullptr, kMiB);
  std::thread([&] { Allocate(allocator, nullptr, kMiB); }).join();
  somnus_pop_tag();
  Allocate(allocator, nullptr, kMiB);
  somnus_pop_tag();
  somnus_pop_tag();  // of nothing
  EXPECT_EQ(Stats(allocator, "inner").resident, 2 * kMiB);
  EXPECT_EQ(Stats(allocator, "outer").resident, 2 * kMiB);
  EXPECT_EQ(Stats(allocator, "default").resident, 4 * kMiB);
}

TEST(SomnusAllocator, ErrorsHaveCodesAndWords) {
  somnus_allocator* none = nullptr;
  somnus_options options = {};
  options.device = 77;
  EXPECT_EQ(somnus_create(&options, &none), SOMNUS_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(somnus_last_error()), "device: there is no device 77");
  options = {};
  options.backup = SOMNUS_BACKUP_FILE;
  EXPECT_EQ(somnus_create(&options, &none), SOMNUS_INVALID_ARGUMENT);
  options = {};
  options.device = SOMNUS_DEVICE_HIP;
  options.device_index = 1000;
  const int no_gpu = somnus_create(&options, &none);
  EXPECT_TRUE(no_gpu == SOMNUS_UNIMPLEMENTED || no_gpu == SOMNUS_UNAVAILABLE) << somnus_last_error();
  EXPECT_EQ(none, nullptr);

  options = {};
  options.memory_limit_bytes = 8 * kMiB;
  const Allocator allocator = Make(options);
  void* data = nullptr;
  EXPECT_EQ(somnus_allocate(allocator.get(), "weights", 0, &data), SOMNUS_INVALID_ARGUMENT);
  EXPECT_EQ(somnus_allocate(allocator.get(), "weights", 16 * kMiB, &data), SOMNUS_RESOURCE_EXHAUSTED);
  EXPECT_EQ(somnus_free(allocator.get(), &data), SOMNUS_NOT_FOUND);
  EXPECT_EQ(data, nullptr);
  const int32_t unknown[] = {3};
  EXPECT_EQ(somnus_sleep(allocator.get(), kTags, unknown, 1), SOMNUS_INVALID_ARGUMENT);
}

struct Footprint {
  int64_t mappings = 0;
  int64_t descriptors = 0;
  int64_t pss = 0;
};

Footprint Now() {
  Footprint now;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) ++now.mappings;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    static_cast<void>(entry);
    ++now.descriptors;
  }
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string word; rollup >> word;) {
    if (word == "Pss:" && rollup >> now.pss) break;
  }
  now.pss *= 1024;
  return now;
}

// The least and the most of several moments.
class Range {
 public:
  void Add(const Footprint& one) {
    for (int64_t Footprint::*kind : kKinds) {
      least_.*kind = std::min(least_.*kind, one.*kind);
      most_.*kind = std::max(most_.*kind, one.*kind);
    }
  }
  const Footprint& least() const { return least_; }
  const Footprint& most() const { return most_; }

 private:
  static constexpr int64_t Footprint::*kKinds[] = {&Footprint::mappings, &Footprint::descriptors,
                                                   &Footprint::pss};
  Footprint least_ = {INT64_MAX, INT64_MAX, INT64_MAX}, most_;
};

void ExpectSame(const Footprint& first, const Footprint& last) {
  EXPECT_EQ(last.mappings, first.mappings);
  EXPECT_EQ(last.descriptors, first.descriptors);
  EXPECT_LE(last.pss, first.pss + kMiB);
}

// Threads that come and go make the C library's pools larger and smaller, so that the least figure counts.
void ExpectNoGrowth(const Range& first, const Range& last) {
  EXPECT_LE(last.least().mappings, first.most().mappings);
  EXPECT_LE(last.least().descriptors, first.most().descriptors);
  EXPECT_LE(last.least().pss, first.most().pss + kMiB);
}

class ManyCycles : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Backups, ManyCycles,
                         testing::Values(SOMNUS_BACKUP_RETAIN, SOMNUS_BACKUP_RELEASE, SOMNUS_BACKUP_FILE,
                                         SOMNUS_BACKUP_COMPRESS));

// Creating a compressing allocator needs zstd in the build.
bool Compresses() {
  somnus_options options = {};
  options.backup = SOMNUS_BACKUP_COMPRESS;
  somnus_allocator* made = nullptr;
  const int status = somnus_create(&options, &made);
  const Allocator owner(made);
  return status != SOMNUS_UNIMPLEMENTED;
}

// 200 cycles, with changed weights in every fourth, so that retained backups are made again.
TEST_P(ManyCycles, LeaveNothingBehind) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer keeps memory that was freed";
#endif
  if (GetParam() == SOMNUS_BACKUP_COMPRESS && !Compresses()) GTEST_SKIP() << somnus_last_error();
  const std::string dir = testing::TempDir();
  somnus_options options = {};
  options.backup = GetParam();
  if (options.backup == SOMNUS_BACKUP_FILE) options.spill_dir = dir.c_str();
  const Allocator allocator = Make(options);
  char* const weights = Allocate(allocator, "weights", 6 * kMiB);
  Allocate(allocator, "kv_cache", 10 * kMiB);
  std::memset(weights, 'w', 6 * kMiB);
  Footprint asleep_before, awake_before;
  Range asleep_first, awake_first, asleep_last, awake_last;
  for (int cycle = 0; cycle <= 200; ++cycle) {
    if (cycle % 4 == 1) {
      weights[cycle * 4096] = static_cast<char>(cycle);
      somnus_drop_backups(allocator.get(), "weights");
    }
    ASSERT_EQ(somnus_sleep(allocator.get(), kTags, kLevel1, 2), SOMNUS_OK) << somnus_last_error();
    const Footprint asleep = Now();
    ASSERT_EQ(somnus_wake(allocator.get(), nullptr, 0), SOMNUS_OK) << somnus_last_error();
    const Footprint awake = Now();
    ASSERT_TRUE(cycle % 4 != 1 || weights[cycle * 4096] == static_cast<char>(cycle));
    // The heap has its size by cycle 5.
    if (cycle == 5) asleep_before = asleep, awake_before = awake;
    if (cycle == 200 && GetParam() != SOMNUS_BACKUP_COMPRESS) {
      ExpectSame(asleep_before, asleep);
      ExpectSame(awake_before, awake);
    }
    if (cycle >= 5 && cycle < 25) asleep_first.Add(asleep), awake_first.Add(awake);
    if (cycle >= 180) asleep_last.Add(asleep), awake_last.Add(awake);
  }
  ExpectNoGrowth(asleep_first, asleep_last);
  ExpectNoGrowth(awake_first, awake_last);
}

}  // namespace
}  // namespace somnus
