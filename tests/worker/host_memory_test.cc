// Two ranks of one host, each in its own process, on a host that has little memory: together the ranks never
// take more than was free, and the rank that is too late is refused, not killed.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <functional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "allocator/host_vmm_driver.h"
#include "tests/fakes/unique_name.h"
#include "tests/worker/fake_parts.h"

namespace somnus {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kMib = 1 << 20;
constexpr int64_t kBlockBytes = 1 << 16;  // FakeRunner's

// Memory that both processes share.
struct Shared {
  std::atomic<int64_t> free_at_start;
  std::atomic<int> arrived;
  std::array<std::atomic<int>, kRanks> pids;
  std::array<std::atomic<int64_t>, kRanks> base;       // resident before the worker has anything
  std::array<std::atomic<int64_t>, kRanks> available;  // that Profile measured
  std::array<std::atomic<int>, kRanks> outcomes;       // an absl::StatusCode
  std::atomic<int64_t> least_free;
};

int64_t AnonymousBytes(int pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    int64_t kib;
    if (words.size() >= 2 && words[0] == "RssAnon:" && absl::SimpleAtoi(words[1], &kib)) return kib * 1024;
  }
  return 0;
}

// A host on which only these two processes take memory.
int64_t FreeBytes(Shared* shared) {
  int64_t taken = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (shared->base[rank] > 0)
      taken += std::max<int64_t>(0, AnonymousBytes(shared->pids[rank]) - shared->base[rank]);
  }
  const int64_t free = shared->free_at_start - taken;
  for (int64_t least = shared->least_free;
       free < least && !shared->least_free.compare_exchange_weak(least, free);) {
  }
  return free;
}

class TwoRanksOfAHost : public testing::Test {
 protected:
  // The work of a rank in a process between the load and the end. The returned status is the outcome.
  using Rank = std::function<absl::Status(Worker&, int rank)>;

  TwoRanksOfAHost() : path_(absl::StrCat(testing::TempDir(), "/host-", getpid())) {
    unlink(path_.c_str());
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = new (memory) Shared{};
    shared_->least_free = int64_t{1} << 60;
  }
  ~TwoRanksOfAHost() override {
    munmap(shared_, sizeof(Shared));
    unlink(path_.c_str());
  }

  void Run(int64_t free_bytes, double utilization, const Rank& work) {
    shared_->free_at_start = free_bytes;
    const std::string group = UniqueName();
    std::vector<pid_t> children;
    for (int rank = 0; rank < kRanks; ++rank) {
      const pid_t child = fork();
      if (child == 0) {
        alarm(120);
        RunRank(rank, group, utilization, work);
        _exit(0);
      }
      children.push_back(child);
    }
    for (const pid_t child : children) {
      int status = -1;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      ASSERT_EQ(status, 0) << "a rank was killed";
    }
    EXPECT_GE(shared_->least_free, 0) << "more was taken than was free";
  }

  // Waits until both are here for the n-th time.
  void Meet(int n) {
    ++shared_->arrived;
    while (shared_->arrived < n * kRanks) absl::SleepFor(absl::Milliseconds(1));
  }

  absl::StatusCode Outcome(int rank) const {
    return static_cast<absl::StatusCode>(shared_->outcomes[rank].load());
  }
  int NumOutcomes(absl::StatusCode code) const { return (Outcome(0) == code) + (Outcome(1) == code); }

  const std::string path_;
  Shared* shared_;

 private:
  void RunRank(int rank, const std::string& group, double utilization, const Rank& work) {
    shared_->pids[rank] = getpid();
    shared_->base[rank] = AnonymousBytes(getpid());
    Meet(1);
    FakeModelControl control;
    WorkerParts parts = FakeParts(&control);
    parts.open_memory = [this](const WorkerOptions&, int) -> absl::StatusOr<std::unique_ptr<VmmDriver>> {
      return MakeHostVmmDriver({.num_threads = 1,
                                .account = HostMemoryAccount::Open(
                                    {.path = path_, .available = [this] { return FreeBytes(shared_); }})});
    };
    Worker worker({.num_threads = 1}, parts);
    v1::LoadModelRequest request = LoadRequest(rank, kRanks);
    request.set_memory_utilization(utilization);
    v1::ProfileRequest profile;
    profile.set_group_epoch(1);
    if (!BeginEpoch(worker, 1).ok() || !worker.LoadModel(request, [](int64_t, int64_t) {}).ok() ||
        !worker.JoinGroup(JoinRequest(rank, kRanks, group)).ok()) {
      _exit(10);
    }
    const auto measured = worker.Profile(profile);
    if (!measured.ok()) _exit(11);
    shared_->available[rank] = measured->available_kv_cache_memory_bytes();
    Meet(2);
    shared_->outcomes[rank] = work(worker, rank).raw_code();
    FreeBytes(shared_);
    Meet(3);
  }
};

TEST_F(TwoRanksOfAHost, TheMeasuredCachesFitTogether) {
  Run(200 * kMib, /*utilization=*/0.9, [this](Worker& worker, int rank) {
    return worker
        .AllocateKvCache(KvRequest(KvConfig(static_cast<int>(shared_->available[rank] / kBlockBytes))))
        .status();
  });
  EXPECT_EQ(NumOutcomes(absl::StatusCode::kOk), 2);
  const int64_t sum = shared_->available[0] + shared_->available[1];
  EXPECT_GT(sum, 140 * kMib) << "nearly 0.9 of what the models left";
  EXPECT_LT(sum, 180 * kMib);
}

// Each cache alone would fit.
TEST_F(TwoRanksOfAHost, OfTwoCachesThatDoNotFitTogetherOneIsRefused) {
  Run(200 * kMib, 0.5, [](Worker& worker, int) {
    return worker.AllocateKvCache(KvRequest(KvConfig(static_cast<int>(120 * kMib / kBlockBytes)))).status();
  });
  EXPECT_EQ(NumOutcomes(absl::StatusCode::kOk), 1);
  EXPECT_EQ(NumOutcomes(absl::StatusCode::kResourceExhausted), 1);
}

TEST_F(TwoRanksOfAHost, WakingOnAHostThatOthersFilledMeanwhile) {
  Run(200 * kMib, 0.5, [this](Worker& worker, int) -> absl::Status {
    absl::Status status =
        worker.AllocateKvCache(KvRequest(KvConfig(static_cast<int>(60 * kMib / kBlockBytes)))).status();
    if (status.ok()) status = Sleep(worker, 2).status();
    if (!status.ok()) return absl::InternalError(status.message());
    Meet(3);
    shared_->free_at_start = 110 * kMib;  // one rank fits with its weights, the other does not
    Meet(4);
    status = WakeUp(worker).status();
    Meet(5);
    return status;
  });
  EXPECT_EQ(NumOutcomes(absl::StatusCode::kOk), 1);
  EXPECT_EQ(NumOutcomes(absl::StatusCode::kResourceExhausted), 1);
}

}  // namespace
}  // namespace somnus
