// The account of a host's memory: two processes together never take more than there was.

#include "allocator/host_account.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "allocator/host_vmm_driver.h"

namespace somnus {
namespace {

// Two accounts over one file are like two processes: the kernel's locks belong to the open file.
class HostAccountTest : public testing::Test {
 protected:
  HostAccountTest() : path_(absl::StrCat(testing::TempDir(), "/account-", getpid())) {
    unlink(path_.c_str());
  }
  ~HostAccountTest() override { unlink(path_.c_str()); }

  std::shared_ptr<HostMemoryAccount> Open(absl::Duration patience = absl::ZeroDuration()) {
    return HostMemoryAccount::Open(
        {.path = path_, .available = [this] { return free_.load(); }, .patience = patience});
  }

  const std::string path_;
  std::atomic<int64_t> free_{100};
};

TEST_F(HostAccountTest, WhatOneReservedTheOtherDoesNotGet) {
  const auto first = Open(), second = Open();
  absl::StatusOr<HostReservation> taken = first->Reserve(60);
  ASSERT_TRUE(taken.ok());
  EXPECT_EQ(first->Available(), 40);
  EXPECT_EQ(second->Available(), 40);
  const absl::Status refused = second->Reserve(60).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(refused.message(), "60 bytes of host memory asked for, 40 available, 20 missing");
  EXPECT_TRUE(second->Reserve(40).ok());  // released at once
  *taken = HostReservation();
  EXPECT_EQ(second->Available(), 100);
  EXPECT_TRUE(second->Reserve(100).ok());
}

TEST_F(HostAccountTest, AProcessThatIsStoppedInTheMiddleStopsNobodyElse) {
  const auto account = Open();
  const int fd = open(path_.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  struct flock table = {};
  table.l_type = F_WRLCK;
  table.l_whence = SEEK_SET;
  table.l_len = 1;
  ASSERT_EQ(fcntl(fd, F_OFD_SETLK, &table), 0);
  EXPECT_EQ(account->Available(), 100);
  EXPECT_TRUE(account->Reserve(100).ok());
  close(fd);
}

TEST_F(HostAccountTest, AProcessCountsItsOwnToo) {
  const auto account = Open(absl::Hours(1));
  const absl::StatusOr<HostReservation> first = account->Reserve(70), second = account->Reserve(20);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(account->Reserve(11).status().message(),
            "11 bytes of host memory asked for, 10 available, 1 missing")
      << "nobody else is waited for";
}

TEST_F(HostAccountTest, WhoMakesMemoryResidentIsWaitedFor) {
  const auto first = Open(), second = Open(absl::Hours(1));
  absl::StatusOr<HostReservation> filling = first->Reserve(50);
  ASSERT_TRUE(filling.ok());
  free_ = 60;  // 40 of the 50 are resident, and so are counted twice
  std::atomic<bool> answered{false};
  absl::StatusOr<HostReservation> got;
  std::thread other([&] {
    got = second->Reserve(50);
    answered = true;
  });
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE(answered);
  free_ = 50;
  *filling = HostReservation();
  other.join();
  EXPECT_TRUE(got.ok()) << got.status();
}

TEST_F(HostAccountTest, AReservationEndsWithItsProcess) {
  const pid_t child = fork();
  if (child == 0) {
    const auto account = Open();
    const absl::StatusOr<HostReservation> reservation = account->Reserve(90);
    _exit(reservation.ok() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(Open()->Available(), 100);
  EXPECT_TRUE(Open()->Reserve(100).ok());
}

TEST_F(HostAccountTest, ManyReservationsAndTheirSlots) {
  free_ = 10000;
  const auto first = Open(), second = Open();
  std::vector<HostReservation> all;
  for (int i = 0; i < 200; ++i) {
    all.push_back((i % 2 == 0 ? first : second)->Reserve(10).value());
  }
  EXPECT_EQ(first->Available(), 8000);
  for (size_t i = 0; i < all.size(); i += 4) all[i] = HostReservation();
  EXPECT_EQ(second->Available(), 8500);
  all.clear();
  EXPECT_EQ(first->Available(), 10000);
}

TEST_F(HostAccountTest, WithoutAFileTheAccountIsTheProcesssOwn) {
  const auto account =
      HostMemoryAccount::Open({.path = "/no/such/folder/account", .available = [] { return int64_t{100}; }});
  const absl::StatusOr<HostReservation> first = account->Reserve(70), second = account->Reserve(20);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(account->Available(), 10);
  EXPECT_TRUE(absl::IsResourceExhausted(account->Reserve(20).status()));
}

// Eight processes of one host, which has room for three: each is refused, or gets pages that exist.
TEST_F(HostAccountTest, WhereTheFileCannotGrowTheAccountIsTheProcesssOwn) {
  const std::shared_ptr<HostMemoryAccount> account = Open();
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto ignored = signal(SIGXFSZ, SIG_IGN);
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  const auto reserved = account->Reserve(60);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, ignored);
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  EXPECT_TRUE(absl::IsResourceExhausted(account->Reserve(60).status())) << "its own bytes count";
  EXPECT_TRUE(account->Reserve(40).ok());
}

TEST_F(HostAccountTest, ProcessesTogetherTakeNoMoreThanThereIs) {
  constexpr int64_t kEach = 16 << 20;
  constexpr int64_t kBudget = 3 * kEach + (1 << 20);
  constexpr int kProcesses = 8;
  struct Shared {
    std::atomic<int64_t> free;
    std::atomic<int> ready, got;
  };
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Shared* shared = new (memory) Shared{};
  shared->free = kBudget;
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      const auto account =
          HostMemoryAccount::Open({.path = path_, .available = [=] { return shared->free.load(); }});
      ++shared->ready;
      while (shared->ready < kProcesses) std::this_thread::yield();
      const absl::StatusOr<HostReservation> reservation = account->Reserve(kEach);
      if (reservation.ok()) {
        absl::SleepFor(absl::Milliseconds(5));  // populates the pages; then the host has less
        if (shared->free.fetch_sub(kEach) < kEach) _exit(2);
        ++shared->got;
      }
      _exit(reservation.ok() || absl::IsResourceExhausted(reservation.status()) ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(shared->got, 3);
  EXPECT_EQ(shared->free, 1 << 20);
  munmap(memory, sizeof(Shared));
}

TEST_F(HostAccountTest, TheDriverReservesUntilPagesAreThere) {
  free_ = 64 << 20;
  const auto account = Open(), other = Open();
  const auto driver = MakeHostVmmDriver({.num_threads = 1, .account = account});
  const int64_t bytes = 8 << 20;
  EXPECT_EQ(driver->AvailableBytes().value(), 64 << 20);
  void* address = driver->Reserve(bytes).value();
  const VmmDriver::Handle handle = driver->Create(bytes).value();
  EXPECT_EQ(other->Available(), 56 << 20);
  ASSERT_TRUE(driver->Map(address, bytes, handle).ok());
  ASSERT_TRUE(driver->SetAccess(address, bytes).ok());
  EXPECT_EQ(other->Available(), 64 << 20) << "from here on the host's own count knows of them";
  void* backup = driver->AllocateHost(bytes).value();
  EXPECT_EQ(other->Available(), 56 << 20);
  ASSERT_TRUE(driver->CopyToHost(backup, address, bytes).ok());
  EXPECT_EQ(other->Available(), 64 << 20);
  driver->FreeHost(backup, bytes);
  EXPECT_TRUE(absl::IsResourceExhausted(driver->Create(65 << 20).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(driver->AllocateHost(65 << 20).status()));
  EXPECT_EQ(other->Available(), 64 << 20);
  const VmmDriver::Handle unused = driver->Create(bytes).value();
  EXPECT_EQ(other->Available(), 56 << 20);
  ASSERT_TRUE(driver->Release(unused).ok());
  EXPECT_EQ(other->Available(), 64 << 20);
  ASSERT_TRUE(driver->Unmap(address, bytes).ok());
  ASSERT_TRUE(driver->Release(handle).ok());
  ASSERT_TRUE(driver->FreeAddress(address, bytes).ok());
}

}  // namespace
}  // namespace somnus
