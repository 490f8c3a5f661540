// Four threads on one allocator, each with private regions in tags that all four put to sleep and wake up:
// every region has the contents that its owner wrote, despite the other threads, and nothing is left at the
// end.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "allocator/host_vmm_driver.h"
#include "allocator/piece_codec.h"
#include "allocator/sleepable_allocator.h"
#include "allocator/use_tag.h"
#include "tests/fakes/fake_vmm_driver.h"

namespace somnus {
namespace {

constexpr int kNumThreads = 4;
constexpr size_t kMaxRegions = 4;  // of a thread
constexpr int64_t kStride = 512;   // of the bytes that are looked at

// The state of a tag that all threads share. The tag's memory is used under a shared lock, and only while the
// tag is awake; a thread that changes the tag has the lock alone. Regions are allocated and freed with no
// lock at all.
struct Tag {
  std::string name;
  std::shared_mutex gate;
  bool asleep = false;         // at least one region may be
  std::atomic<int> losses{0};  // how often contents were discarded
};

struct Area {
  Tag* tag = nullptr;
  char* data = nullptr;
  int64_t row_bytes = 0, num_rows = 1;
  int64_t wanted = 0;  // bytes of each row
  char pattern = 0;    // 0: nothing was written
  int losses = 0;      // of the tag, when the area was written
};

struct Counts {
  std::atomic<int> sleeps{0}, wakes{0}, aborts{0}, refusals{0}, checks{0}, frees_asleep{0}, resizes{0};
};

struct Case {
  std::string name;
  BackupPolicy backup;
  bool fake;  // the driver: no usable memory, but refuses as a device does
};

class ConcurrentAllocatorTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().backup == BackupPolicy::kCompress && !CheckCompression().ok())
      GTEST_SKIP() << CheckCompression();
    if (GetParam().fake) {
      auto fake = std::make_unique<FakeVmmDriver>();
      fake_ = fake.get();
      driver_ = std::move(fake);
    } else {
      // Now and then there is not enough.
      driver_ = MakeHostVmmDriver({.num_threads = 2, .memory_limit_bytes = 24 * driver_unit()});
    }
    SleepableAllocatorOptions options{.backup = GetParam().backup};
    if (options.backup == BackupPolicy::kFile) options.spill_dir = testing::TempDir();
    allocator_ = SleepableAllocator::Create(driver_.get(), options);
    const char* const names[] = {"weights", "kv_cache", "workspace"};
    for (size_t i = 0; i < std::size(tags_); ++i) tags_[i].name = names[i];
  }

  int64_t driver_unit() const { return GetParam().fake ? FakeVmmDriver::kUnit : 2 << 20; }

  // A thread: random calls on the thread's regions, and on the tags.
  class Actor {
   public:
    Actor(ConcurrentAllocatorTest* test, int number) : test_(*test), random_(number) {}

    void Run(int num_calls) {
      for (int i = 0; i < num_calls; ++i) {
        switch (Below(9)) {
          case 0:
          case 1:
            Allocate();
            break;
          case 2:
            Free();
            break;
          case 3:
          case 4:
            Write();
            break;
          case 5:
            Resize();
            break;
          case 6:
            Sleep();
            break;
          case 7:
            Wake();
            break;
          case 8:
            Look();
        }
        for (Area& area : areas_) Check(area);
      }
    }
    void FreeAll() {
      while (!areas_.empty()) Free();
    }
    void CheckAll() {
      for (Area& area : areas_) Check(area);
    }

   private:
    int Below(int bound) { return static_cast<int>(random_() % bound); }
    Tag& SomeTag() { return test_.tags_[Below(std::size(test_.tags_))]; }
    Area* SomeArea() { return areas_.empty() ? nullptr : &areas_[Below(static_cast<int>(areas_.size()))]; }

    void Allocate() {
      if (areas_.size() >= kMaxRegions) return Free();
      Area area{.tag = &SomeTag()};
      const int64_t unit = test_.driver_unit();
      area.row_bytes = unit * (1 + Below(2));
      area.num_rows = 1 + Below(2);
      area.wanted = area.num_rows == 1 ? area.row_bytes : unit;
      const UseTag scope(area.tag->name);
      ASSERT_EQ(UseTag::Current(), area.tag->name) << "another thread's";
      SleepableAllocator& allocator = *test_.allocator_;
      const absl::StatusOr<void*> data =
          area.num_rows == 1
              ? allocator.Allocate(UseTag::Current(), area.row_bytes)
              : allocator.AllocateRows(UseTag::Current(), area.row_bytes, area.num_rows, area.wanted);
      if (absl::IsResourceExhausted(data.status())) return;
      ASSERT_TRUE(data.ok()) << data.status();
      area.data = static_cast<char*>(*data);
      areas_.push_back(area);
    }

    void Free() {
      Area* const area = SomeArea();
      if (area == nullptr) return;
      {
        // A change of the tag that is under way holds the gate.
        std::shared_lock<std::shared_mutex> lock(area->tag->gate, std::try_to_lock);
        test_.counts_.frees_asleep += !lock.owns_lock() || area->tag->asleep;
      }
      const absl::Status status = test_.allocator_->Free(area->data);
      ASSERT_TRUE(status.ok()) << status;
      areas_.erase(areas_.begin() + (area - areas_.data()));
    }

    void Write() {
      Area* const area = SomeArea();
      if (area == nullptr) return;
      std::shared_lock<std::shared_mutex> lock(area->tag->gate);
      if (area->tag->asleep) return;
      area->pattern = static_cast<char>(1 + Below(100));
      area->losses = area->tag->losses;
      if (test_.fake_ == nullptr) {
        for (int64_t row = 0; row < area->num_rows; ++row)
          std::memset(area->data + row * area->row_bytes, area->pattern, area->wanted);
      }
      test_.allocator_->DropBackups(area->tag->name);
    }

    void Check(Area& area) {
      std::shared_lock<std::shared_mutex> lock(area.tag->gate);
      if (area.tag->asleep || area.pattern == 0 || area.losses != area.tag->losses) return;
      ++test_.counts_.checks;
      if (test_.fake_ != nullptr) return;
      for (int64_t row = 0; row < area.num_rows; ++row) {
        const char* const data = area.data + row * area.row_bytes;
        for (int64_t i = 0; i < area.wanted; i += kStride) {
          if (data[i] == area.pattern) continue;
          ADD_FAILURE() << area.tag->name << ": byte " << i << " of row " << row << " is " << int{data[i]}
                        << ", not " << int{area.pattern};
          area.pattern = 0;
          return;
        }
      }
    }

    // Rows that were wanted before and are wanted still stay.
    void Resize() {
      Area* const area = SomeArea();
      if (area == nullptr) return;
      std::shared_lock<std::shared_mutex> lock(area->tag->gate);
      const int64_t wanted =
          test_.driver_unit() * (1 + Below(static_cast<int>(area->row_bytes / test_.driver_unit())));
      const absl::Status status = test_.allocator_->Resize(area->data, wanted);
      if (IsRefusal(status) || absl::IsResourceExhausted(status)) return;
      ASSERT_TRUE(status.ok()) << status;
      if (wanted > area->wanted) area->pattern = 0;  // until the next write
      area->wanted = wanted;
      ++test_.counts_.resizes;
    }

    void Sleep() {
      Tag& tag = SomeTag();
      const bool keeps = Below(3) > 0;
      const std::map<std::string, RestoreMode> modes = {
          {tag.name, keeps ? RestoreMode::kBackup : RestoreMode::kDiscard}};
      std::unique_lock<std::shared_mutex> lock(tag.gate);
      if (Below(4) == 0) {
        const absl::Status status = test_.allocator_->PrepareSleep(modes);
        if (IsRefusal(status)) return;
        ASSERT_TRUE(status.ok()) << status;
        test_.allocator_->AbortSleep();
        ++test_.counts_.aborts;
        return;
      }
      const absl::Status status = test_.allocator_->Sleep(modes).status();
      if (IsRefusal(status)) return;
      ASSERT_TRUE(status.ok()) << status;
      tag.asleep = true;
      if (!keeps) ++tag.losses;
      ++test_.counts_.sleeps;
    }

    void Wake() {
      Tag& tag = SomeTag();
      std::unique_lock<std::shared_mutex> lock(tag.gate);
      if (Below(4) == 0) {
        const absl::Status status = test_.allocator_->PrepareWake({tag.name});
        if (IsRefusal(status) || absl::IsResourceExhausted(status)) return;
        ASSERT_TRUE(status.ok()) << status;
        test_.allocator_->AbortWake();
        ++test_.counts_.aborts;
        return;
      }
      const absl::Status status = test_.allocator_->WakeUp({tag.name}).status();
      if (IsRefusal(status) || absl::IsResourceExhausted(status)) return;
      ASSERT_TRUE(status.ok()) << status;
      tag.asleep = false;
      ++test_.counts_.wakes;
    }

    void Look() {
      ASSERT_TRUE(test_.allocator_->CheckWake({}).ok());
      for (const auto& [tag, stats] : test_.allocator_->Stats()) {
        EXPECT_GE(stats.resident, 0) << tag;
        EXPECT_GE(stats.sleeping, 0) << tag;
      }
    }

    // Another thread's change is between the two phases, or a region sleeps with contents.
    bool IsRefusal(const absl::Status& status) {
      const bool refused = absl::IsFailedPrecondition(status);
      test_.counts_.refusals += refused;
      return refused;
    }

    ConcurrentAllocatorTest& test_;
    std::mt19937 random_;
    std::vector<Area> areas_;
  };

  Tag tags_[3];
  Counts counts_;
  std::unique_ptr<VmmDriver> driver_;
  FakeVmmDriver* fake_ = nullptr;
  std::unique_ptr<SleepableAllocator> allocator_;
};

INSTANTIATE_TEST_SUITE_P(Backups, ConcurrentAllocatorTest,
                         testing::Values(Case{"Retain", BackupPolicy::kRetain, false},
                                         Case{"Release", BackupPolicy::kRelease, false},
                                         Case{"File", BackupPolicy::kFile, false},
                                         Case{"Compress", BackupPolicy::kCompress, false},
                                         Case{"RetainOnADevice", BackupPolicy::kRetain, true},
                                         Case{"ReleaseOnADevice", BackupPolicy::kRelease, true},
                                         Case{"CompressOnADevice", BackupPolicy::kCompress, true}),
                         [](const auto& info) { return info.param.name; });

TEST_P(ConcurrentAllocatorTest, ContentsAreTheirOwners) {
  const int num_calls = GetParam().fake ? 2000 : 250;
  std::vector<std::unique_ptr<Actor>> actors;
  std::vector<std::thread> threads;
  for (int i = 0; i < kNumThreads; ++i) actors.push_back(std::make_unique<Actor>(this, i));
  for (auto& actor : actors) threads.emplace_back([&actor, num_calls] { actor->Run(num_calls); });
  for (std::thread& thread : threads) thread.join();
  // Each kind of event has happened.
  for (const std::atomic<int>* count : {&counts_.sleeps, &counts_.wakes, &counts_.aborts, &counts_.refusals,
                                        &counts_.checks, &counts_.frees_asleep, &counts_.resizes})
    EXPECT_GT(*count, 0);
  for (Tag& tag : tags_) {
    const absl::Status woken = allocator_->WakeUp({tag.name}).status();
    tag.asleep = !woken.ok();  // memory may not suffice for all at once
    for (auto& actor : actors) actor->CheckAll();
    ASSERT_TRUE(allocator_->Sleep({{tag.name, RestoreMode::kBackup}}).ok());
    tag.asleep = true;
  }
  for (auto& actor : actors) actor->FreeAll();
  for (const auto& [tag, stats] : allocator_->Stats())
    EXPECT_EQ(stats.resident + stats.sleeping + stats.host_backup + stats.file_backup, 0) << tag;
  allocator_.reset();
  if (fake_ == nullptr) return;
  EXPECT_EQ(fake_->violations(), std::vector<std::string>{});
  EXPECT_EQ(fake_->live_bytes() + fake_->host_bytes() + fake_->reserved_bytes(), 0);
}

}  // namespace
}  // namespace somnus
