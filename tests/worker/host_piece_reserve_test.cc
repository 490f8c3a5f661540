// Memory that is taken ahead: never on the caller's thread, never beyond the bound, and never lost.
#include "worker/host_piece_reserve.h"

#include <gtest/gtest.h>

#include <set>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace somnus {
namespace {

// A driver that counts pieces taken and freed, by thread, and that can be held in the middle of a call.
class Driver {
 public:
  absl::StatusOr<void*> Take() {
    absl::MutexLock lock(&mu_);
    ++calls_;
    callers_.insert(std::this_thread::get_id());
    mu_.Await(absl::Condition(
        +[](Driver* driver) { return !driver->held_; }, this));
    if (!error_.ok()) return error_;
    void* const piece = new char;
    live_.insert(piece);
    most_ = std::max(most_, live_.size());
    return piece;
  }
  void Free(void* piece) {
    absl::MutexLock lock(&mu_);
    freers_.insert(std::this_thread::get_id());
    EXPECT_EQ(live_.erase(piece), 1u) << "freed twice, or never taken";
    delete static_cast<char*>(piece);
  }
  void Hold(bool held) {
    absl::MutexLock lock(&mu_);
    held_ = held;
  }
  void Fail(absl::Status error) {
    absl::MutexLock lock(&mu_);
    error_ = std::move(error);
  }
  size_t num_live() const { return Read(live_.size()); }
  size_t most() const { return Read(most_); }
  int calls() const { return Read(calls_); }
  bool was_called_here() const {
    absl::MutexLock lock(&mu_);
    return callers_.contains(std::this_thread::get_id());
  }
  bool has_freed_here() const {
    absl::MutexLock lock(&mu_);
    return freers_.contains(std::this_thread::get_id());
  }

 private:
  template <typename T>
  T Read(const T& value) const {
    absl::MutexLock lock(&mu_);
    return value;
  }
  mutable absl::Mutex mu_;
  bool held_ = false;
  absl::Status error_;
  int calls_ = 0;
  size_t most_ = 0;
  std::set<void*> live_;
  std::set<std::thread::id> callers_, freers_;
};

std::unique_ptr<HostPieceReserve> Reserve(Driver* driver, int64_t num_ahead, int64_t num_most,
                                          std::atomic<int64_t>* bytes = nullptr) {
  return std::make_unique<HostPieceReserve>(
      HostPieceReserveOptions{.num_ahead = num_ahead,
                              .num_most = num_most,
                              .piece_bytes = 100,
                              .ready_bytes = bytes,
                              .retry = absl::Milliseconds(1)},
      [driver] { return driver->Take(); }, [driver](void* piece) { driver->Free(piece); });
}

void Await(const std::function<bool()>& done) {
  while (!done()) absl::SleepFor(absl::Milliseconds(1));
}

TEST(HostPieceReserveTest, TakesNothingBeforeItBegins) {
  Driver driver;
  const auto reserve = Reserve(&driver, 3, 9);
  EXPECT_TRUE(absl::IsUnavailable(reserve->Get(1).status()));
  EXPECT_EQ(driver.calls(), 0);
  reserve->Start();
  Await([&] { return reserve->num_ready() == 3; });
  EXPECT_EQ(driver.calls(), 3);
}

TEST(HostPieceReserveTest, PiecesComeFromAnotherThreadAllOrNone) {
  Driver driver;
  std::atomic<int64_t> bytes{0};
  {
    const auto reserve = Reserve(&driver, 2, 5, &bytes);
    reserve->Start();
    Await([&] { return bytes == 200; });
    const absl::Status lacking = reserve->Get(4).status();
    EXPECT_TRUE(absl::IsUnavailable(lacking)) << lacking;
    Await([&] { return reserve->num_ready() == 4; });
    absl::StatusOr<std::vector<void*>> pieces = reserve->Get(4);
    ASSERT_TRUE(pieces.ok()) << pieces.status();
    EXPECT_EQ(pieces->size(), 4u);
    Await([&] { return reserve->num_ready() == 1; });  // and no more: the bound is 5
    EXPECT_TRUE(absl::IsUnavailable(reserve->Get(2).status()));
    for (void* piece : *pieces) reserve->GiveBack(piece);
    EXPECT_EQ(driver.most(), 5u);
    Await([&] { return reserve->num_ready() == 2 && driver.num_live() == 2; });
    EXPECT_FALSE(driver.was_called_here());
    EXPECT_FALSE(driver.has_freed_here()) << "a step may give pieces back";
  }
  EXPECT_EQ(driver.num_live(), 0u);
  EXPECT_EQ(bytes, 0);
}

TEST(HostPieceReserveTest, StopGivesWhatIsReadyBackAndWhatIsJustBeingTaken) {
  Driver driver;
  const auto reserve = Reserve(&driver, 2, 4);
  reserve->Start();
  Await([&] { return reserve->num_ready() == 2; });
  void* const given = reserve->GetReady();
  driver.Hold(true);
  EXPECT_TRUE(absl::IsUnavailable(reserve->Get(3).status()));
  Await([&] { return driver.calls() == 3; });
  reserve->Stop();
  EXPECT_EQ(driver.num_live(), 1u);
  EXPECT_EQ(reserve->GetReady(), nullptr);
  reserve->GiveBack(given);
  EXPECT_EQ(driver.num_live(), 0u) << "at once: a sleep says what it has released";
  driver.Hold(false);
  reserve->Start();
  Await([&] { return reserve->num_ready() == 2 && driver.num_live() == 2; });
}

TEST(HostPieceReserveTest, AnErrorOfTheDriverIsToldAndTriedAgain) {
  Driver driver;
  driver.Fail(absl::ResourceExhaustedError("no pinned memory"));
  const auto reserve = Reserve(&driver, 1, 4);
  reserve->Start();
  Await([&] { return absl::IsResourceExhausted(reserve->Get(1).status()); });
  EXPECT_EQ(reserve->Get(1).status().message(), "no pinned memory");
  driver.Fail(absl::OkStatus());
  Await([&] { return reserve->num_ready() == 1; });
  absl::StatusOr<std::vector<void*>> pieces = reserve->Get(1);
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  reserve->GiveBack(pieces->front());
}

}  // namespace
}  // namespace somnus
