// Weights that are read ahead of a wake-up: the parts of a file that come into the page cache, and when a
// worker reads ahead.

#include "worker/weight_prefetch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "tests/fakes/temp_dir.h"
#include "tests/worker/weights_test.h"

namespace somnus {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kFileBytes = 8 << 20;

// A file on a disk, without a page in the page cache, as far as the file system drops pages.
class PrefetchFile {
 public:
  PrefetchFile() {
    const std::string path = dir_.path() + "/weights";
    std::ofstream(path) << std::string(kFileBytes, 'w');
    const int fd = open(path.c_str(), O_RDONLY);
    EXPECT_EQ(fsync(fd), 0);
    EXPECT_EQ(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    close(fd);
    file_ = *MappedFile::Open(path);
  }
  FileRange Range(int64_t begin, int64_t end) const {
    return {file_.get(), static_cast<uint64_t>(begin), static_cast<uint64_t>(end)};
  }
  const MappedFile& file() const { return *file_; }
  int64_t ResidentPages(int64_t begin, int64_t end) const {
    std::vector<unsigned char> pages((end - begin) / kPage);
    EXPECT_EQ(mincore(const_cast<uint8_t*>(file_->data()) + begin, end - begin, pages.data()), 0);
    int64_t resident = 0;
    for (const unsigned char page : pages) resident += page & 1;
    return resident;
  }

 private:
  TempDir dir_;
  std::unique_ptr<MappedFile> file_;
};

void Await(const WeightPrefetch& prefetch) {
  while (!prefetch.done()) absl::SleepFor(absl::Milliseconds(1));
}

TEST(WeightPrefetchTest, TheRangesComeIntoThePageCache) {
  const PrefetchFile file;
  const bool dropped = file.ResidentPages(0, kFileBytes) == 0;
  const WeightPrefetch prefetch(nullptr, {file.Range(0, 2 << 20), file.Range(6 << 20, kFileBytes)},
                                {.max_bytes = 1 << 30});
  Await(prefetch);
  EXPECT_EQ(prefetch.num_bytes(), 4 << 20);
  EXPECT_EQ(file.ResidentPages(0, 2 << 20), (2 << 20) / kPage);
  EXPECT_EQ(file.ResidentPages(6 << 20, kFileBytes), (2 << 20) / kPage);
  if (dropped) {
    EXPECT_LT(file.ResidentPages(2 << 20, 6 << 20), (4 << 20) / kPage) << "nobody asked for them";
  }
}

TEST(WeightPrefetchTest, ItTakesNoMoreThanItsShareOfAProcessor) {
  EXPECT_EQ(WeightPrefetchOptions().cpu_share, 0.125);
  const auto rest = [](int64_t cpu_ms, int64_t passed_ms, double share) {
    return RestOf(absl::Milliseconds(cpu_ms), absl::Milliseconds(passed_ms), share);
  };
  EXPECT_EQ(rest(1, 8, 0.125), absl::ZeroDuration());
  EXPECT_EQ(rest(1, 1000, 0.125), absl::ZeroDuration()) << "the disk is slow";
  EXPECT_EQ(rest(3, 8, 0.125), absl::Milliseconds(16));
  EXPECT_EQ(rest(3, 8, 0.5), absl::ZeroDuration());
  EXPECT_EQ(rest(3, 4, 0.5), absl::Milliseconds(2));
  EXPECT_EQ(rest(3, 3, 1), absl::ZeroDuration()) << "it never rests";
}

// A thread of lower priority gets next to nothing beside threads that compute.
TEST(WeightPrefetchTest, ItHasThePriorityOfOthers) {
  const PrefetchFile file;
  const int own = getpriority(PRIO_PROCESS, 0);
  const WeightPrefetch prefetch(nullptr, {file.Range(0, kFileBytes)}, {.max_bytes = kFileBytes});
  while (prefetch.num_bytes() == 0) absl::SleepFor(absl::Milliseconds(1));
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    errno = 0;
    const int priority = getpriority(PRIO_PROCESS, std::stoi(thread.path().filename().string()));
    if (errno != 0) continue;  // the thread may have ended
    EXPECT_EQ(priority, own);
  }
  Await(prefetch);
}

TEST(WeightPrefetchTest, ItReadsNoMoreThanItMay) {
  const PrefetchFile file;
  const WeightPrefetch prefetch(nullptr, {file.Range(0, 1 << 20), file.Range(2 << 20, kFileBytes)},
                                {.max_bytes = (3 << 20) + 5});
  Await(prefetch);
  EXPECT_EQ(prefetch.num_bytes(), (3 << 20) + 5);
  const WeightPrefetch nothing(nullptr, {file.Range(0, kFileBytes)}, {.max_bytes = 0});
  Await(nothing);
  EXPECT_EQ(nothing.num_bytes(), 0);
}

TEST(WeightPrefetchTest, ItEndsWithItsObjectAndAtACutFile) {
  const PrefetchFile file;
  for (int i = 0; i < 20; ++i)
    WeightPrefetch(nullptr, {file.Range(0, kFileBytes)}, {.max_bytes = kFileBytes});
  TempDir dir;
  const std::string path = dir.path() + "/cut";
  std::ofstream(path) << std::string(kFileBytes, 'w');
  const std::unique_ptr<MappedFile> cut = *MappedFile::Open(path);
  ASSERT_EQ(truncate(path.c_str(), 1 << 20), 0);
  const WeightPrefetch prefetch(nullptr, {{cut.get(), 0, kFileBytes}}, {.max_bytes = kFileBytes});
  Await(prefetch);
  EXPECT_LT(prefetch.num_bytes(), kFileBytes);
}

class WorkerPrefetchTest : public WeightsTest {
 protected:
  // Asks until everything is there.
  void AwaitBytes(int64_t bytes) {
    while (Prefetch() < bytes) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(Prefetch(), bytes);
  }
  int64_t Prefetch(int64_t epoch = 1, double cpu_share = 0) {
    v1::PrefetchRequest request;
    request.set_group_epoch(epoch);
    request.set_cpu_share(cpu_share);
    const absl::StatusOr<v1::PrefetchResponse> response = worker_.Prefetch(request);
    return response.ok() ? response->num_bytes() : -1;
  }
  // The files that a call opens.
  bool Opens() {
    const int before = control_.opens;
    Prefetch();
    return control_.opens > before;
  }
};

TEST_F(WorkerPrefetchTest, OnceInASleepOfDiscardedWeights) {
  const PrefetchFile file;
  control_.ranges = {file.Range(0, 3 << 20)};
  MakeAwake();
  EXPECT_FALSE(Opens()) << "it is awake";
  ASSERT_EQ(Transit(1), absl::OkStatus());
  EXPECT_FALSE(Opens()) << "the weights have a backup";
  ASSERT_EQ(Transit(2), absl::OkStatus());
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(Opens());
    EXPECT_FALSE(Opens()) << "it has begun";
    AwaitBytes(3 << 20);
    ASSERT_EQ(Transit(0), absl::OkStatus());
    EXPECT_EQ(Prefetch(), 0);
    EXPECT_EQ(Number(), kLoaded);
    ASSERT_EQ(Transit(2), absl::OkStatus());
  }
  EXPECT_EQ(Prefetch(/*epoch=*/7), -1);
}

TEST_F(WorkerPrefetchTest, TheRequestSaysWhichShareOfAProcessor) {
  const PrefetchFile file;
  control_.ranges = {file.Range(0, 3 << 20)};
  MakeAwake();
  ASSERT_EQ(Transit(2), absl::OkStatus());
  EXPECT_EQ(Prefetch(1, -0.1), -1);
  EXPECT_EQ(Prefetch(1, 1.1), -1);
  EXPECT_EQ(Prefetch(1, std::nan("")), -1);
  EXPECT_GE(Prefetch(1, 1), 0);
  AwaitBytes(3 << 20);
}

// As of discarded weights: the wake-up reads the same files.
TEST_F(WorkerPrefetchTest, WeightsWhoseBackupIsTheCheckpoint) {
  const PrefetchFile file;
  control_.ranges = {file.Range(0, 3 << 20)};
  MakeAwake(v1::LOAD_FORMAT_AUTO, v1::BACKUP_POLICY_FILE);
  EXPECT_FALSE(Opens()) << "it is awake";
  ASSERT_EQ(Transit(1), absl::OkStatus());
  EXPECT_TRUE(Opens());
  AwaitBytes(3 << 20);
  ASSERT_EQ(Transit(0), absl::OkStatus());
  EXPECT_EQ(Number(), kLoaded);
  ASSERT_EQ(Update("u", 3, 2), absl::OkStatus());
  ASSERT_EQ(Transit(1), absl::OkStatus());
  EXPECT_FALSE(Opens()) << "no file has an update's";
}

TEST_F(WorkerPrefetchTest, WhatNoFileHasIsNotRead) {
  MakeAwake();
  ASSERT_EQ(Update("u", 3, 2), absl::OkStatus());
  ASSERT_EQ(Transit(2), absl::OkStatus());
  EXPECT_FALSE(Opens());
}

TEST_F(WorkerPrefetchTest, AWakeUpComesInTheMiddle) {
  const PrefetchFile file;
  control_.ranges.assign(100, file.Range(0, kFileBytes));
  MakeAwake();
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(Transit(2), absl::OkStatus());
    EXPECT_TRUE(Opens());
    ASSERT_EQ(Transit(0), absl::OkStatus());
    EXPECT_EQ(Number(), kLoaded);
  }
}

}  // namespace
}  // namespace somnus
