// An error of a shortage says exactly how many bytes were missing by tag, on the device, the host and the
// disk.

#include "allocator/memory_shortage.h"

#include <errno.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

#include "allocator/host_account.h"
#include "allocator/sleepable_allocator.h"
#include "allocator/spill_store.h"
#include "tests/fakes/fake_vmm_driver.h"

namespace somnus {

void PrintTo(const MemoryShortage& shortage, std::ostream* out) { *out << EncodeShortages({shortage}); }

namespace {

using Shortages = std::vector<MemoryShortage>;
constexpr int64_t kUnit = FakeVmmDriver::kUnit;
const Shortages kTwo = {{"kv_cache", int64_t{5} << 40, 1, MemoryKind::kDevice},
                        {"", 7, 7, MemoryKind::kDisk}};

TEST(MemoryShortageTest, WhatIsEncodedIsDecoded) {
  EXPECT_EQ(EncodeShortages(kTwo), "device 5497558138880 1 kv_cache\ndisk 7 7 \n");
  EXPECT_EQ(DecodeShortages(EncodeShortages(kTwo)), kTwo);
  EXPECT_EQ(DecodeShortages("host 3 0 a tag with spaces\n"),
            (Shortages{{"a tag with spaces", 3, 0, MemoryKind::kHost}}));
  EXPECT_EQ(DecodeShortages(""), Shortages());
}

TEST(MemoryShortageTest, WhatIsNotWellFormedIsNothing) {
  const std::string good = "device 2 1 kv_cache\n";
  for (const char* bad :
       {"device 2 1 kv_cache", "device 2 1\n", "device 2\n", "\n", "cloud 2 1 a\n", "device x 1 a\n",
        "device 2 -1 a\n", "device 2 3 a\n", "device 99999999999999999999 1 a\n", " device 2 1 a\n"}) {
    EXPECT_EQ(DecodeShortages(bad), Shortages()) << bad;
    EXPECT_EQ(DecodeShortages(good + bad), Shortages()) << bad;
  }
  EXPECT_EQ(DecodeShortages("host 2 1 " + std::string(257, 'a') + "\n"), Shortages());
  std::string many;
  for (int i = 0; i < 65; ++i) many += good;
  EXPECT_EQ(DecodeShortages(many), Shortages());
}

TEST(MemoryShortageTest, NoBytesMakeItReadBeyondThem) {
  std::mt19937 random(5);
  const std::string text = EncodeShortages(kTwo);
  for (int i = 0; i < 20'000; ++i) {
    std::string changed = text.substr(0, random() % (text.size() + 1));
    for (int k = 0; k < 3 && !changed.empty(); ++k)
      changed[random() % changed.size()] = static_cast<char>(random());
    for (const MemoryShortage& one : DecodeShortages(changed))
      EXPECT_TRUE(one.missing_bytes >= 0 && one.missing_bytes <= one.needed_bytes) << changed;
  }
}

TEST(MemoryShortageTest, AStatusCarriesItsShortages) {
  const absl::Status status = WithShortages(absl::ResourceExhaustedError("no"), kTwo);
  EXPECT_EQ(status.message(), "no");
  EXPECT_EQ(ShortagesOf(status), kTwo);
  EXPECT_EQ(ShortagesOf(OfTag(status, "weights"))[1].tag, "weights");
  EXPECT_EQ(ShortagesOf(OfTag(status, "weights"))[0].tag, "kv_cache");
  EXPECT_EQ(ShortagesOf(absl::InternalError("no")), Shortages());
  EXPECT_EQ(OfTag(absl::InternalError("no"), "weights"), absl::InternalError("no"));
  EXPECT_TRUE(OfTag(absl::OkStatus(), "weights").ok());
}

TEST(MemoryShortageTest, WhatIsMissingIsWhatCannotBeHad) {
  EXPECT_EQ(MissingBytes(10, 4), 6);
  EXPECT_EQ(MissingBytes(10, -4), 10);
  EXPECT_EQ(MissingBytes(10, 12), 0);
  EXPECT_EQ(MissingOfRefused(10, 4), 6);
  EXPECT_EQ(MissingOfRefused(10, 10), 10) << "somebody has refused what is there";
  EXPECT_EQ(MissingAfterRefusal(25, HostShortage(10, 4)), 21) << "of the part 4 could be had";
  EXPECT_EQ(MissingAfterRefusal(8, HostShortage(10, 9)), 1) << "the part was rounded up";
  EXPECT_EQ(MissingAfterRefusal(8, absl::ResourceExhaustedError("no")), 8);
}

TEST(MemoryShortageTest, AnAccountThatIsOverdrawnLacksAllOfIt) {
  EXPECT_EQ(ShortagesOf(HostShortage(10, 4)), (Shortages{{"", 10, 6, MemoryKind::kHost}}));
  EXPECT_EQ(ShortagesOf(HostShortage(10, -4)), (Shortages{{"", 10, 10, MemoryKind::kHost}}));
}

// A driver with a limit of host memory, too.
class LimitedDriver : public FakeVmmDriver {
 public:
  absl::StatusOr<void*> AllocateHost(int64_t bytes) override {
    if (bytes > host_limit - host_bytes()) return HostShortage(bytes, host_limit - host_bytes());
    return FakeVmmDriver::AllocateHost(bytes);
  }
  int64_t host_limit = int64_t{1} << 40;
};

class TransitionShortageTest : public testing::Test {
 protected:
  void Make(BackupPolicy backup) {
    SleepableAllocatorOptions options;
    options.backup = backup;
    options.spill_dir = testing::TempDir();
    options.open_spill_io = open_spill_io_;
    allocator_ = SleepableAllocator::Create(&driver_, options);
    weights_ = allocator_->Allocate("weights", 4 * kUnit).value();
    more_weights_ = allocator_->Allocate("weights", 3 * kUnit).value();
    kv_ = allocator_->Allocate("kv_cache", 6 * kUnit).value();
    EXPECT_TRUE(allocator_->Allocate("workspace", 2 * kUnit).ok());
    driver_.Fill(weights_, 4 * kUnit, 'w');
    driver_.Fill(more_weights_, 3 * kUnit, 'm');
  }
  bool HasWeights() {
    return driver_.Holds(weights_, 4 * kUnit, 'w') && driver_.Holds(more_weights_, 3 * kUnit, 'm');
  }
  absl::Status Sleep() {
    return allocator_
        ->Sleep({{"weights", RestoreMode::kBackup},
                 {"kv_cache", RestoreMode::kDiscard},
                 {"workspace", RestoreMode::kDiscard}})
        .status();
  }

  LimitedDriver driver_;
  std::function<std::unique_ptr<SpillIo>(int, int)> open_spill_io_;
  std::unique_ptr<SleepableAllocator> allocator_;
  void *weights_, *more_weights_, *kv_;
};

TEST_F(TransitionShortageTest, AWakeUpSaysWhatEachTagLacksAndWorksOnceThereIsMemory) {
  Make(BackupPolicy::kRetain);
  ASSERT_TRUE(Sleep().ok());
  driver_.SetCapacity(9 * kUnit);  // of 15: the weights, which come first, and 2 more
  const absl::Status status = allocator_->WakeUp({}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ShortagesOf(status), (Shortages{{"kv_cache", 6 * kUnit, 4 * kUnit, MemoryKind::kDevice},
                                            {"workspace", 2 * kUnit, 2 * kUnit, MemoryKind::kDevice}}));
  EXPECT_EQ(driver_.live_bytes(), 0) << "all sleeps as before";
  EXPECT_EQ(ShortagesOf(allocator_->WakeUp({"kv_cache", "workspace"}).status()), Shortages());
  driver_.SetCapacity(15 * kUnit);
  ASSERT_TRUE(allocator_->WakeUp({}).ok());
  EXPECT_TRUE(HasWeights());
}

TEST_F(TransitionShortageTest, OnlyTheTagsThatWereAskedForLackAnything) {
  Make(BackupPolicy::kRetain);
  ASSERT_TRUE(Sleep().ok());
  driver_.SetCapacity(6 * kUnit);
  EXPECT_EQ(ShortagesOf(allocator_->WakeUp({"weights"}).status()),
            (Shortages{{"weights", 7 * kUnit, kUnit, MemoryKind::kDevice}}));
}

TEST_F(TransitionShortageTest, ASleepSaysHowMuchHostMemoryItsBackupsLack) {
  Make(BackupPolicy::kRetain);
  driver_.host_limit = 5 * kUnit;
  const absl::Status status = Sleep();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ShortagesOf(status), (Shortages{{"weights", 7 * kUnit, 2 * kUnit, MemoryKind::kHost}}));
  EXPECT_EQ(driver_.host_bytes(), 0) << "nothing is kept";
  EXPECT_TRUE(HasWeights());
  driver_.host_limit = 7 * kUnit;
  EXPECT_TRUE(Sleep().ok());
}

// Every write finds the disk full.
class FullDisk : public SpillIo {
 public:
  void Write(int slot, const char*, int64_t, int64_t) override { slots_.push_back(slot); }
  void Read(int slot, char*, int64_t, int64_t) override { slots_.push_back(slot); }
  Completion Wait() override {
    const int slot = slots_.back();
    slots_.pop_back();
    return {slot, -ENOSPC};
  }

 private:
  std::vector<int> slots_;
};

TEST_F(TransitionShortageTest, ASleepThatFindsTheDiskFullSaysWhichTagNeedsIt) {
  bool full = true;
  open_spill_io_ = [&](int fd, int depth) -> std::unique_ptr<SpillIo> {
    if (full) return std::make_unique<FullDisk>();
    return MakeThreadedSpillIo(fd, depth);
  };
  Make(BackupPolicy::kFile);
  const Shortages shortages = ShortagesOf(Sleep());
  ASSERT_EQ(shortages.size(), 1u);
  EXPECT_EQ(shortages[0].tag, "weights");
  EXPECT_EQ(shortages[0].memory, MemoryKind::kDisk);
  EXPECT_EQ(shortages[0].needed_bytes, 7 * kUnit);
  EXPECT_TRUE(HasWeights());
  full = false;
  EXPECT_TRUE(Sleep().ok()) << "once there is room";
}

TEST_F(TransitionShortageTest, AFileLacksWhatTheDiskDoesNotHave) {
  Make(BackupPolicy::kRetain);
  int64_t free_bytes = 5 * kUnit;
  const auto store =
      MakeSpillStore(&driver_, {.dir = testing::TempDir(),
                                .open_io = [](int, int) { return std::make_unique<FullDisk>(); },
                                .free_bytes = [&](int) { return free_bytes; }});
  store->Expect(7 * kUnit);
  const auto lacks = [&] { return ShortagesOf(store->Save(weights_, 4 * kUnit).status()); };
  EXPECT_EQ(lacks(), (Shortages{{"", 7 * kUnit, 2 * kUnit, MemoryKind::kDisk}}));
  free_bytes = 70 * kUnit;
  EXPECT_EQ(lacks(), (Shortages{{"", 7 * kUnit, 7 * kUnit, MemoryKind::kDisk}})) << "a quota has refused it";
}

}  // namespace
}  // namespace somnus
