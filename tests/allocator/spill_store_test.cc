// Backups in a file: full disks, short writes, damaged files, and the files that are left afterwards.

#include "allocator/spill_store.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <typeinfo>

#include "absl/strings/str_cat.h"
#include "allocator/sleepable_allocator.h"
#include "allocator/spill_io.h"
#include "tests/fakes/fake_vmm_driver.h"

namespace somnus {
namespace {

constexpr int64_t kUnit = FakeVmmDriver::kUnit;

// The fate of operations, counted from 1 over all files.
struct Faults {
  int fail_at = 0;  // the operation that fails
  int error = ENOSPC;
  int64_t at_most = 0;     // no operation moves more bytes; 0: no limit
  bool end_early = false;  // operations move nothing
  int operations = 0;
  int fd = -1;
};

class FaultyIo : public SpillIo {
 public:
  FaultyIo(std::unique_ptr<SpillIo> io, Faults* faults) : io_(std::move(io)), faults_(faults) {}

  void Write(int slot, const char* data, int64_t bytes, int64_t offset) override {
    if (!Fails(slot)) io_->Write(slot, data, Limited(bytes), offset);
  }
  void Read(int slot, char* data, int64_t bytes, int64_t offset) override {
    if (!Fails(slot)) io_->Read(slot, data, Limited(bytes), offset);
  }
  Completion Wait() override {
    if (failed_.empty()) return io_->Wait();
    const Completion first = failed_.front();
    failed_.erase(failed_.begin());
    return first;
  }

 private:
  bool Fails(int slot) {
    const bool fails = ++faults_->operations == faults_->fail_at;
    if (fails) failed_.push_back({slot, -faults_->error});
    if (!fails && faults_->end_early) failed_.push_back({slot, 0});
    return fails || faults_->end_early;
  }
  int64_t Limited(int64_t bytes) const {
    return faults_->at_most > 0 ? std::min(bytes, faults_->at_most) : bytes;
  }

  const std::unique_ptr<SpillIo> io_;
  Faults* const faults_;
  std::vector<Completion> failed_;
};

std::function<std::unique_ptr<SpillIo>(int, int)> WithFaults(Faults* faults) {
  return [faults](int fd, int depth) {
    faults->fd = fd;
    return std::make_unique<FaultyIo>(MakeThreadedSpillIo(fd, depth), faults);
  };
}

int64_t DiskBytes(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 ? int64_t{512} * info.st_blocks : -1;
}

class SpillStoreTest : public testing::Test {
 protected:
  SpillStoreTest() : store_(Make()) {
    for (size_t i = 0; i < data_.size(); ++i) data_[i] = static_cast<char>(i * 31 + i / 4096);
    device_ = driver_.Reserve(kBytes).value();
    const auto handle = driver_.Create(kBytes).value();
    EXPECT_TRUE(driver_.Map(device_, kBytes, handle).ok());
    EXPECT_TRUE(driver_.SetAccess(device_, kBytes).ok());
    EXPECT_TRUE(driver_.CopyFromHost(device_, data_.data(), kBytes).ok());
  }

  std::unique_ptr<BackupStore> Make() {
    return MakeSpillStore(&driver_, {testing::TempDir(), WithFaults(&faults_), /*piece_bytes=*/8192});
  }
  bool Intact() {
    std::string now(kBytes, 0);
    EXPECT_TRUE(driver_.CopyToHost(now.data(), device_, kBytes).ok());
    return now == data_;
  }
  // Whether a backup brings overwritten bytes back.
  absl::Status Restored(Backup* backup) {
    driver_.Fill(device_, kBytes, 0);
    absl::Status status = backup->Restore(device_);
    EXPECT_TRUE(!status.ok() || Intact());
    return status;
  }

  // 13 pieces, the last of which is short and ends within a block.
  static constexpr int64_t kBytes = 12 * 8192 + 5 * kUnit;
  static constexpr int kPieces = 13;
  FakeVmmDriver driver_;
  Faults faults_;
  std::string data_ = std::string(kBytes, 0);
  void* device_;
  std::unique_ptr<BackupStore> store_;
};

TEST_F(SpillStoreTest, RestoresWhatWasSaved) {
  auto backup = store_->Save(device_, kBytes);
  ASSERT_TRUE(backup.ok()) << backup.status();
  EXPECT_EQ(driver_.host_bytes(), 0) << "no buffer is kept";
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Restored(backup->get()).ok());
}

TEST_F(SpillStoreTest, GoesOnAfterPartsOfAPiece) {
  faults_.at_most = 4096;
  auto backup = store_->Save(device_, kBytes);
  ASSERT_TRUE(backup.ok()) << backup.status();
  EXPECT_EQ(faults_.operations, 25) << "two for each of twelve pieces, and one for the last";
  EXPECT_TRUE(Restored(backup->get()).ok());
}

TEST_F(SpillStoreTest, InterruptedOperationsBeginAgain) {
  faults_.fail_at = 3;
  faults_.error = EINTR;
  auto backup = store_->Save(device_, kBytes);
  ASSERT_TRUE(backup.ok()) << backup.status();
  EXPECT_TRUE(Restored(backup->get()).ok());
}

TEST_F(SpillStoreTest, AFullDiskAtEachWriteLosesNothing) {
  for (int nth = 1; nth <= kPieces; ++nth) {
    faults_.operations = 0;
    faults_.fail_at = nth;
    const auto refused = store_->Save(device_, kBytes);
    EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
    EXPECT_NE(refused.status().message().find("writing the spill file in"), std::string::npos);
    EXPECT_TRUE(Intact());
    EXPECT_EQ(driver_.host_bytes(), 0);
    EXPECT_EQ(DiskBytes(faults_.fd), 0) << "the space goes back to the disk";
  }
  auto backup = store_->Save(device_, kBytes);
  ASSERT_TRUE(backup.ok()) << backup.status();
  EXPECT_TRUE(Restored(backup->get()).ok());
}

TEST_F(SpillStoreTest, AnUnreadableDiskAtEachReadKeepsTheBackup) {
  auto backup = store_->Save(device_, kBytes);
  ASSERT_TRUE(backup.ok());
  for (int nth = 1; nth <= kPieces; ++nth) {
    faults_.operations = 0;
    faults_.fail_at = nth;
    faults_.error = EIO;
    EXPECT_FALSE(Restored(backup->get()).ok());
    EXPECT_EQ(driver_.host_bytes(), 0);
  }
  EXPECT_TRUE(Restored(backup->get()).ok());
}

TEST_F(SpillStoreTest, WritesThatMoveNothingAreAnError) {
  faults_.end_early = true;
  EXPECT_TRUE(absl::IsResourceExhausted(store_->Save(device_, kBytes).status()));
}

TEST_F(SpillStoreTest, AFileThatEndsEarlyIsDataLoss) {
  auto backup = store_->Save(device_, kBytes);
  ASSERT_TRUE(backup.ok());
  faults_.end_early = true;
  EXPECT_TRUE(absl::IsDataLoss(Restored(backup->get())));
  faults_.end_early = false;
  ASSERT_EQ(ftruncate(faults_.fd, 3 * 8192), 0);
  EXPECT_TRUE(absl::IsDataLoss(Restored(backup->get())));
}

TEST_F(SpillStoreTest, OneChangedByteInEachPieceIsDataLoss) {
  auto backup = store_->Save(device_, kBytes);
  ASSERT_TRUE(backup.ok());
  alignas(kSpillAlign) static char block[kSpillAlign];
  for (int64_t at = 0; at < kBytes; at += 8192) {
    ASSERT_EQ(pread(faults_.fd, block, sizeof(block), at), static_cast<int64_t>(sizeof(block)));
    block[100] ^= 4;
    ASSERT_EQ(pwrite(faults_.fd, block, sizeof(block), at), static_cast<int64_t>(sizeof(block)));
    const absl::Status status = Restored(backup->get());
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_NE(status.message().find(absl::StrCat("from byte ", at)), std::string::npos) << status;
    block[100] ^= 4;
    ASSERT_EQ(pwrite(faults_.fd, block, sizeof(block), at), static_cast<int64_t>(sizeof(block)));
  }
  EXPECT_TRUE(Restored(backup->get()).ok());
}

TEST_F(SpillStoreTest, SpaceIsUsedAgain) {
  std::vector<std::unique_ptr<Backup>> backups;
  for (int i = 0; i < 3; ++i) backups.push_back(store_->Save(device_, kBytes).value());
  const int64_t three = DiskBytes(faults_.fd);
  EXPECT_GE(three, 3 * kBytes);
  for (int i = 0; i < 50; ++i) {
    backups[i % 3] = nullptr;
    backups[i % 3] = store_->Save(device_, kBytes).value();
    EXPECT_LE(DiskBytes(faults_.fd), three);
  }
  for (auto& backup : backups) EXPECT_TRUE(Restored(backup.get()).ok());
  backups.clear();
  EXPECT_EQ(DiskBytes(faults_.fd), 0);
}

TEST_F(SpillStoreTest, ADirectoryThatIsNotThereIsNamed) {
  const absl::Status status = CheckSpillDir("/no/such/directory");
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_NE(status.message().find("/no/such/directory"), std::string::npos);
  EXPECT_TRUE(CheckSpillDir(testing::TempDir()).ok());
}

// Whether the file system of TempDir takes files past the page cache.
bool TakesDirect() {
  std::string path = testing::TempDir() + "/direct-XXXXXX";
  const int fd = mkostemp(path.data(), O_DIRECT);
  if (fd < 0) return false;
  close(fd);
  unlink(path.c_str());
  return true;
}

TEST_F(SpillStoreTest, TheFileIsPastThePageCacheWhereTheFileSystemTakesThat) {
  if (!TakesDirect()) GTEST_SKIP() << "the file system of " << testing::TempDir() << " takes no O_DIRECT";
  ASSERT_TRUE(store_->Save(device_, kBytes).ok());
  const int flags = fcntl(faults_.fd, F_GETFL);
  ASSERT_GE(flags, 0);
  EXPECT_EQ(flags & O_DIRECT, O_DIRECT);
}

struct IoKind {
  std::string name;
  std::unique_ptr<SpillIo> (*make)(int fd, int depth);
};

class SpillIoTest : public testing::TestWithParam<IoKind> {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "/spill-io-XXXXXX";
    fd_ = mkstemp(path.data());
    ASSERT_GE(fd_, 0);
    unlink(path.c_str());
    io_ = GetParam().make(fd_, 4);
    if (io_ == nullptr) GTEST_SKIP() << "this build, kernel or sandbox has no " << GetParam().name;
  }
  void TearDown() override {
    io_ = nullptr;
    close(fd_);
  }

  int fd_ = -1;
  std::unique_ptr<SpillIo> io_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, SpillIoTest,
                         testing::Values(IoKind{"io_uring", MakeUringSpillIo},
                                         IoKind{"threads", MakeThreadedSpillIo}),
                         [](const auto& info) { return info.param.name; });

TEST_P(SpillIoTest, MovesBytesAndReportsErrors) {
  std::string out(4 * kSpillAlign, 0), in(4 * kSpillAlign, 0);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<char>(i / 7);
  for (int slot = 0; slot < 4; ++slot)
    io_->Write(slot, &out[slot * kSpillAlign], kSpillAlign, slot * kSpillAlign);
  int slots = 0;
  for (int i = 0; i < 4; ++i) {
    const SpillIo::Completion done = io_->Wait();
    EXPECT_EQ(done.result, kSpillAlign);
    slots |= 1 << done.slot;
  }
  EXPECT_EQ(slots, 15);
  io_->Read(2, in.data(), 4 * kSpillAlign, 0);
  EXPECT_EQ(io_->Wait().result, 4 * kSpillAlign);
  EXPECT_EQ(in, out);
  io_->Read(0, in.data(), kSpillAlign, 4 * kSpillAlign);
  EXPECT_EQ(io_->Wait().result, 0) << "the end of the file";
  io_->Read(0, nullptr, kSpillAlign, 0);
  EXPECT_EQ(io_->Wait().result, -EFAULT);
  io_->Write(0, out.data(), kSpillAlign, 0);
  io_ = nullptr;  // waits for the write
  EXPECT_EQ(pread(fd_, in.data(), kSpillAlign, 0), kSpillAlign);
  EXPECT_EQ(in.substr(0, kSpillAlign), out.substr(0, kSpillAlign));
}

// A store by itself takes the first kind of I/O that the system has.
TEST_P(SpillIoTest, UringIsChosenWhereThereIsOne) {
  const bool has_uring = MakeUringSpillIo(fd_, 4) != nullptr;
  const std::unique_ptr<SpillIo> chosen = MakeSpillIo(fd_, 4);
  const SpillIo &one = *chosen, &other = *io_;
  EXPECT_EQ(typeid(one) == typeid(other), has_uring == (GetParam().name == "io_uring"));
}

// Through the allocator: after every failure the regions are awake or asleep with their contents.
TEST(SpillThroughTheAllocator, FullAndDamagedDisks) {
  FakeVmmDriver driver;
  Faults faults;
  auto allocator = SleepableAllocator::Create(
      &driver,
      {.backup = BackupPolicy::kFile, .spill_dir = testing::TempDir(), .open_spill_io = WithFaults(&faults)});
  void* a = allocator->Allocate("weights", 3 * kUnit).value();
  void* b = allocator->Allocate("weights", 2 * kUnit).value();
  driver.Fill(a, 3 * kUnit, 'a');
  driver.Fill(b, 2 * kUnit, 'b');
  for (const int nth : {1, 2}) {
    faults.operations = 0;
    faults.fail_at = nth;
    EXPECT_TRUE(absl::IsResourceExhausted(allocator->Sleep({{"weights", RestoreMode::kBackup}}).status()));
    EXPECT_TRUE(driver.Holds(a, 3 * kUnit, 'a') && driver.Holds(b, 2 * kUnit, 'b'));
    EXPECT_EQ(allocator->Stats().at("weights").file_backup, 0);
  }
  ASSERT_TRUE(allocator->Sleep({{"weights", RestoreMode::kBackup}}).ok());
  EXPECT_EQ(driver.live_bytes() + driver.host_bytes(), 0);
  EXPECT_EQ(allocator->Stats().at("weights").file_backup, 5 * kUnit);
  for (const int nth : {1, 2}) {
    faults.operations = 0;
    faults.fail_at = nth;
    faults.error = EIO;
    EXPECT_FALSE(allocator->WakeUp({}).ok());
    EXPECT_EQ(driver.live_bytes(), 0);
  }
  ASSERT_TRUE(allocator->WakeUp({}).ok());
  EXPECT_TRUE(driver.Holds(a, 3 * kUnit, 'a') && driver.Holds(b, 2 * kUnit, 'b'));

  faults.operations = 0;
  ASSERT_TRUE(allocator->Sleep({{"weights", RestoreMode::kBackup}}).ok());
  EXPECT_EQ(faults.operations, 0) << "the file of the first sleep is still right";
  ASSERT_EQ(ftruncate(faults.fd, 0), 0);
  EXPECT_TRUE(absl::IsDataLoss(allocator->WakeUp({}).status()));
  EXPECT_EQ(driver.live_bytes(), 0);
  // A deeper sleep gives lost contents up; then the memory can be had without contents.
  ASSERT_TRUE(allocator->Sleep({{"weights", RestoreMode::kDiscard}}).ok());
  EXPECT_EQ(allocator->Stats().at("weights").file_backup, 0);
  EXPECT_TRUE(allocator->WakeUp({}).ok());
  EXPECT_EQ(driver.violations(), std::vector<std::string>{});
}

// The backup is either used by a sleep that goes deeper, or retained for the next sleep.
TEST(SpillThroughTheAllocator, ADiscardGivesTheDiskSpaceUp) {
  for (const bool asleep : {true, false}) {
    FakeVmmDriver driver;
    Faults faults;
    auto allocator = SleepableAllocator::Create(&driver, {.backup = BackupPolicy::kFile,
                                                          .spill_dir = testing::TempDir(),
                                                          .open_spill_io = WithFaults(&faults)});
    void* const weights = allocator->Allocate("weights", 3 * kUnit).value();
    driver.Fill(weights, 3 * kUnit, 'w');
    ASSERT_TRUE(allocator->Sleep({{"weights", RestoreMode::kBackup}}).ok());
    EXPECT_GE(DiskBytes(faults.fd), 3 * kUnit);
    if (!asleep) {
      ASSERT_TRUE(allocator->WakeUp({}).ok());
      EXPECT_GE(DiskBytes(faults.fd), 3 * kUnit);
    }
    ASSERT_TRUE(allocator->Sleep({{"weights", RestoreMode::kDiscard}}).ok());
    EXPECT_EQ(DiskBytes(faults.fd), 0);
    EXPECT_EQ(allocator->Stats().at("weights").file_backup, 0);
    ASSERT_TRUE(allocator->WakeUp({}).ok());
    driver.Fill(weights, 3 * kUnit, 'v');
    ASSERT_TRUE(allocator->Sleep({{"weights", RestoreMode::kBackup}}).ok());
    ASSERT_TRUE(allocator->WakeUp({}).ok());
    EXPECT_TRUE(driver.Holds(weights, 3 * kUnit, 'v'));
  }
}

TEST(SpillThroughTheAllocator, WithoutADirectoryTheSleepIsRefused) {
  FakeVmmDriver driver;
  auto allocator =
      SleepableAllocator::Create(&driver, {.backup = BackupPolicy::kFile, .spill_dir = "/no/such/directory"});
  void* data = allocator->Allocate("weights", kUnit).value();
  driver.Fill(data, kUnit, 'w');
  EXPECT_TRUE(absl::IsNotFound(allocator->Sleep({{"weights", RestoreMode::kBackup}}).status()));
  EXPECT_TRUE(driver.Holds(data, kUnit, 'w'));
}

}  // namespace
}  // namespace somnus
