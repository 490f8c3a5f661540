// Groups of ranks on GPUs, through fakes of NCCL and of peer memory: the agreement of ranks, the ways of
// messages, and that an error of one part ends all parts.

#include "worker/comm/device_group.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "absl/time/clock.h"
#include "tests/comm/fake_nccl.h"
#include "tests/comm/fake_peers.h"
#include "tests/comm/rank_processes.h"
#include "tests/fakes/unique_name.h"
#include "worker/comm/collective_plan.h"

namespace somnus {
namespace {

// The promise is one second; the rest is for machines where the test does not get a CPU at once.
constexpr absl::Duration kSoon = absl::Seconds(5);

bool Soon(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + kSoon;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

class DeviceGroupTest : public testing::Test {
 protected:
  static constexpr int kWorldSize = 3;
  struct Rank {
    GroupOptions options;
    std::shared_ptr<FakePeersNotes> peers = std::make_shared<FakePeersNotes>();
    absl::StatusOr<const NcclApi*> nccl = absl::UnavailableError("not set");
    std::unique_ptr<Device> device;
    absl::StatusOr<std::unique_ptr<Communicator>> joined = absl::UnknownError("not joined");
    Communicator& comm() { return **joined; }
  };

  DeviceGroupTest() : ranks_(kWorldSize) {
    const std::string group = UniqueName();
    for (int r = 0; r < kWorldSize; ++r) {
      ranks_[r].options.group_name = group;
      ranks_[r].options.rank = r;
      ranks_[r].options.world_size = kWorldSize;
      ranks_[r].options.nccl_unique_id = std::string(128, 'x');
      ranks_[r].options.connect_timeout = absl::Seconds(30);
      ranks_[r].nccl = &fake_.api();
      ranks_[r].device = Device::CreateCpu(CpuDeviceOptions{.num_threads = 1}).value();
    }
  }
  ~DeviceGroupTest() override {
    Leave();
    EXPECT_EQ(fake_.live_comms(), 0);
    EXPECT_TRUE(fake_.violations().empty()) << fake_.violations()[0];
  }

  // All ranks at once, each in a separate thread.
  void EveryRank(const std::function<void(Rank&)>& body) {
    std::vector<std::thread> threads;
    for (Rank& rank : ranks_) threads.emplace_back([&rank, &body] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }
  void Join() {
    EveryRank([](Rank& rank) {
      const MakePeers make = [&rank](const PeerOptions& options) {
        return FakePeers::Make(options, rank.peers);
      };
      rank.joined = JoinDeviceGroup(rank.options, rank.device.get(), make, rank.nccl);
    });
  }
  void JoinWell() {
    Join();
    for (Rank& rank : ranks_) ASSERT_TRUE(rank.joined.ok()) << rank.joined.status();
  }
  void Leave() {
    EveryRank([](Rank& rank) { rank.joined = absl::UnknownError("left"); });
  }

  FakeNccl fake_;
  std::vector<Rank> ranks_;
  float data_[16] = {};
};

constexpr int64_t kSmall = 1000, kLarge = 1 << 20;  // elements

TEST_F(DeviceGroupTest, SmallMessagesGoThroughPeerMemoryLargeOnesThroughNccl) {
  JoinWell();
  EXPECT_EQ(fake_.calls("ncclCommInitRankConfig"), kWorldSize);
  Communicator& comm = ranks_[1].comm();
  EXPECT_TRUE(comm.stream_ordered());
  EXPECT_EQ(comm.rank(), 1);
  EXPECT_EQ(comm.world_size(), kWorldSize);
  EXPECT_TRUE(comm.AllReduceSum(data_, kSmall, DataType::kBF16).ok());
  EXPECT_TRUE(comm.AllGather(data_, kSmall, data_).ok());
  EXPECT_EQ(ranks_[1].peers->reduces, 1);
  EXPECT_EQ(ranks_[1].peers->gathers, 1);
  EXPECT_EQ(fake_.calls("ncclAllReduce"), 0);
  EXPECT_TRUE(comm.AllReduceSum(data_, kLarge, DataType::kBF16).ok());
  EXPECT_TRUE(comm.AllGather(data_, kLarge, data_).ok());
  EXPECT_EQ(ranks_[1].peers->reduces, 1);
  EXPECT_EQ(fake_.calls("ncclAllReduce"), 1);
  EXPECT_EQ(fake_.calls("ncclAllGather"), 1);
  EXPECT_TRUE(comm.AllReduceSum(data_, 0, DataType::kF32).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(comm.AllReduceSum(data_, -1, DataType::kF32)));
  EXPECT_TRUE(comm.status().ok()) << "a bad argument is not the end";
  EveryRank([](Rank& rank) { EXPECT_TRUE(rank.comm().Barrier().ok()); });
}

TEST_F(DeviceGroupTest, BatchInvariantSumsAreTheSameWayForEverySize) {
  for (Rank& rank : ranks_) rank.options.batch_invariant = true;
  JoinWell();
  EXPECT_EQ(fake_.calls("ncclCommInitRankConfig"), 0);
  Communicator& comm = ranks_[1].comm();
  EXPECT_TRUE(comm.AllReduceSum(data_, kSmall, DataType::kBF16).ok());
  EXPECT_TRUE(comm.AllReduceSum(data_, kLarge, DataType::kBF16).ok());
  EXPECT_TRUE(comm.AllGather(data_, kLarge, data_).ok());
  EXPECT_EQ(ranks_[1].peers->reduces, 2);
  EXPECT_EQ(ranks_[1].peers->gathers, 1);
}

TEST_F(DeviceGroupTest, BatchInvarianceNeedsOneHost) {
  for (Rank& rank : ranks_) {
    rank.options.batch_invariant = true;
    rank.options.rank_hosts = {"a", "a", "b"};
  }
  Join();
  for (Rank& rank : ranks_) {
    const absl::Status status = rank.joined.status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_NE(status.message().find("several hosts"), std::string::npos) << status;
    EXPECT_NE(status.message().find("batch invariant"), std::string::npos) << status;
  }
}

TEST_F(DeviceGroupTest, NormsAreFusedWhereThatIsOffered) {
  JoinWell();
  float residual[4] = {1, 2, 3, 4}, delta[4] = {0, 0, 0, 0}, weight[4] = {1, 1, 1, 1}, out[4] = {};
  const auto view = [](float* data) { return TensorView{data, DataType::kF32, 1, 4, 4}; };
  Rank& rank = ranks_[0];
  const auto run = [&] {
    return rank.comm().AllReduceAddRmsNorm(*rank.device, view(residual), view(delta), weight, 0, view(out));
  };
  EXPECT_TRUE(run().ok());
  EXPECT_EQ(rank.peers->norms, 1);
  EXPECT_EQ(out[3], 0) << "the fake computes nothing";
  rank.peers->fuses = false;
  EXPECT_TRUE(run().ok());
  EXPECT_EQ(rank.peers->reduces, 1) << "the sum by itself, then the op";
  EXPECT_FLOAT_EQ(out[3], static_cast<float>(4 / std::sqrt(7.5)));
}

TEST_F(DeviceGroupTest, OneRankWithoutPeerAccessMeansNcclForAll) {
  ranks_[2].peers->connect_error = absl::UnavailableError("cannot be reached from this device");
  JoinWell();
  for (Rank& rank : ranks_) {
    EXPECT_TRUE(rank.peers->gone) << "given back";
    EXPECT_FALSE(rank.peers->gone_while_connected);
    EXPECT_TRUE(rank.comm().AllReduceSum(data_, kSmall, DataType::kF32).ok());
    EXPECT_EQ(rank.peers->reduces, 0);
  }
  EXPECT_EQ(fake_.calls("ncclAllReduce"), kWorldSize);
}

TEST_F(DeviceGroupTest, MemoryThatOneRankReadsWronglyMeansNcclForAll) {
  ranks_[1].peers->probe_error = absl::UnavailableError("memory of rank 2: 7 words differ");
  JoinWell();
  for (Rank& rank : ranks_) {
    EXPECT_TRUE(rank.peers->probe_written);
    EXPECT_TRUE(rank.peers->gone) << "given back";
    EXPECT_FALSE(rank.peers->gone_while_connected);
    EXPECT_TRUE(rank.comm().AllReduceSum(data_, kSmall, DataType::kF32).ok());
  }
  EXPECT_EQ(fake_.calls("ncclAllReduce"), kWorldSize);
}

TEST_F(DeviceGroupTest, WronglyReadMemoryWithoutNcclIsAnError) {
  ranks_[1].peers->probe_error = absl::UnavailableError("memory of rank 2: 7 words differ");
  for (Rank& rank : ranks_) rank.options.nccl_unique_id.clear();
  Join();
  for (Rank& rank : ranks_) EXPECT_TRUE(absl::IsFailedPrecondition(rank.joined.status()));
  EXPECT_NE(ranks_[1].joined.status().message().find("7 words differ"), std::string::npos);
  EXPECT_NE(ranks_[0].joined.status().message().find("rank 1 cannot"), std::string::npos);
}

// Thresholds decide which way a message goes, so all ranks must have the thresholds of the slowest link.
TEST_F(DeviceGroupTest, SlowestLinkIsTheGroups) {
  ranks_[2].peers->link = PeerLink::kPcie;
  JoinWell();
  const int64_t bytes = PeerReduceLimit(kWorldSize, PeerLink::kPcie);
  EXPECT_LT(bytes, PeerReduceLimit(kWorldSize, PeerLink::kNvLink));
  for (Rank& rank : ranks_) {
    EXPECT_EQ(rank.peers->group_link, PeerLink::kPcie);
    EXPECT_TRUE(rank.comm().AllReduceSum(data_, bytes / 4, DataType::kF32).ok());
    EXPECT_TRUE(rank.comm().AllReduceSum(data_, bytes / 4 + 1, DataType::kF32).ok());
    EXPECT_EQ(rank.peers->reduces, 1);
  }
  EXPECT_EQ(fake_.calls("ncclAllReduce"), kWorldSize);
}

TEST_F(DeviceGroupTest, RanksThatShareADeviceDoWithoutNccl) {
  for (Rank& rank : ranks_) rank.peers->device = 9;
  JoinWell();
  EXPECT_EQ(fake_.calls("ncclCommInitRankConfig"), 0) << "it would refuse";
  EXPECT_TRUE(ranks_[0].comm().AllReduceSum(data_, kLarge, DataType::kF32).ok());
  EXPECT_TRUE(ranks_[0].comm().AllGather(data_, kLarge, data_).ok());
  EXPECT_EQ(ranks_[0].peers->reduces, 1);
  EXPECT_EQ(ranks_[0].peers->gathers, 1);
  EXPECT_TRUE(ranks_[0].comm().Suspend().ok());
  EXPECT_TRUE(ranks_[0].comm().Resume().ok());
}

TEST_F(DeviceGroupTest, OneRankWithoutNcclMeansPeerMemoryForAll) {
  ranks_[1].nccl = absl::UnavailableError("there is no NCCL");
  JoinWell();
  EXPECT_EQ(fake_.calls("ncclCommInitRankConfig"), 0) << "nobody waits for a rank that cannot come";
  EXPECT_TRUE(ranks_[0].comm().AllReduceSum(data_, kLarge, DataType::kF32).ok());
  EXPECT_EQ(ranks_[0].peers->reduces, 1);
}

TEST_F(DeviceGroupTest, NcclThatDoesNotStartOnOneRankIsUsedByNone) {
  fake_.Answer("ncclCommInitRankConfig", {nccl::kUnhandledCudaError});
  JoinWell();
  EXPECT_EQ(fake_.live_comms(), 0);
  for (Rank& rank : ranks_) EXPECT_TRUE(rank.comm().AllReduceSum(data_, kLarge, DataType::kF32).ok());
  EXPECT_EQ(fake_.calls("ncclAllReduce"), 0);
}

TEST_F(DeviceGroupTest, NoWayAtAllIsAnErrorWithBothReasons) {
  ranks_[0].peers->make_error = absl::ResourceExhaustedError("no memory for peers");
  for (Rank& rank : ranks_) rank.options.nccl_unique_id.clear();
  Join();
  for (Rank& rank : ranks_) {
    const absl::Status status = rank.joined.status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_NE(status.message().find("unique id"), std::string::npos) << status;
  }
  EXPECT_NE(ranks_[0].joined.status().message().find("no memory for peers"), std::string::npos);
  EXPECT_NE(ranks_[2].joined.status().message().find("rank 0"), std::string::npos);
}

TEST_F(DeviceGroupTest, SeveralHostsMeetByNcclAlone) {
  for (Rank& rank : ranks_) rank.options.rank_hosts = {"a", "a", "b"};
  JoinWell();
  EveryRank([this](Rank& rank) {
    EXPECT_FALSE(rank.peers->connected);
    float one = 1;
    EXPECT_TRUE(rank.comm().AllReduceSum(&one, 1, DataType::kF32).ok());
    EXPECT_TRUE(rank.comm().Barrier().ok());
    EXPECT_TRUE(rank.comm().Barrier().ok());
  });
  EXPECT_EQ(fake_.calls("ncclAllReduce"), 3 * kWorldSize) << "a barrier is a sum that is waited for";
}

TEST_F(DeviceGroupTest, SleepReachesNccl) {
  JoinWell();
  for (Rank& rank : ranks_) EXPECT_TRUE(rank.comm().Suspend().ok());
  EXPECT_EQ(fake_.calls("ncclCommSuspend"), kWorldSize);
  const absl::Status asleep = ranks_[0].comm().AllReduceSum(data_, kLarge, DataType::kF32);
  EXPECT_TRUE(absl::IsFailedPrecondition(asleep)) << asleep;
  EXPECT_TRUE(ranks_[0].comm().status().ok());
  for (Rank& rank : ranks_) EXPECT_TRUE(rank.comm().Resume().ok());
  EXPECT_TRUE(ranks_[0].comm().AllReduceSum(data_, kLarge, DataType::kF32).ok());
}

TEST_F(DeviceGroupTest, AbortReachesEveryRankAndPart) {
  JoinWell();
  ranks_[1].comm().Abort("told so");
  for (Rank& rank : ranks_) {
    EXPECT_TRUE(Soon([&] { return !rank.comm().status().ok(); })) << rank.options.rank;
    EXPECT_TRUE(absl::IsAborted(rank.comm().status())) << rank.comm().status();
    EXPECT_EQ(rank.comm().status().message(), "told so");
    EXPECT_TRUE(absl::IsAborted(rank.comm().AllReduceSum(data_, kSmall, DataType::kF32)));
    EXPECT_TRUE(absl::IsAborted(rank.comm().Barrier()));
    EXPECT_TRUE(Soon([&] {
      absl::MutexLock lock(&rank.peers->mu);
      return rank.peers->stopped;
    })) << "kernels that wait must be let go";
    EXPECT_EQ(rank.peers->reduces, 0);
  }
  EXPECT_TRUE(Soon([&] { return fake_.live_comms() == 0; }));
}

// status() returns a kernel's error as soon as the device has been waited for, and the other ranks' soon
// after.
TEST_F(DeviceGroupTest, ErrorOfOnePartIsTheEndOfAll) {
  JoinWell();
  {
    absl::MutexLock lock(&ranks_[0].peers->mu);
    ranks_[0].peers->status = absl::DeadlineExceededError("rank 2 did not come");
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(ranks_[0].comm().status()));
  EXPECT_TRUE(Soon([&] { return !ranks_[2].comm().status().ok(); }));
  EXPECT_EQ(ranks_[2].comm().status().message(), "rank 2 did not come");
  EXPECT_TRUE(Soon([&] { return fake_.live_comms() == 0; }));
}

TEST_F(DeviceGroupTest, AsyncErrorOfNcclIsFoundByTheWatchdog) {
  JoinWell();
  fake_.SetAsyncError(nccl::kRemoteError);
  for (Rank& rank : ranks_) {
    EXPECT_TRUE(Soon([&] { return !rank.comm().status().ok(); }));
    EXPECT_TRUE(Soon([&] {
      absl::MutexLock lock(&rank.peers->mu);
      return rank.peers->stopped;
    }));
  }
}

TEST_F(DeviceGroupTest, LeavesInOrder) {
  JoinWell();
  Leave();
  for (Rank& rank : ranks_) {
    EXPECT_TRUE(rank.peers->gone);
    EXPECT_FALSE(rank.peers->gone_while_connected);
    EXPECT_FALSE(rank.peers->stopped) << "nothing had to be broken off";
  }
  EXPECT_EQ(fake_.calls("ncclCommDestroy"), 2 * kWorldSize) << "and those that the group formed by";
  EXPECT_EQ(fake_.calls("ncclCommAbort"), 0);
}

TEST_F(DeviceGroupTest, LeavesAloneWhenTheOthersStay) {
  JoinWell();
  const absl::Time start = absl::Now();
  ranks_[0].joined = absl::UnknownError("left");
  EXPECT_LT(absl::Now() - start, absl::Seconds(2) + kSoon);
  for (const int r : {1, 2}) EXPECT_TRUE(Soon([&] { return !ranks_[r].comm().status().ok(); }));
}

TEST(DeviceGroupAlone, OneRankNeedsNothing) {
  GroupOptions options;
  const MakePeers none = [](const PeerOptions&) { return absl::InternalError("asked for"); };
  const auto comm = JoinDeviceGroup(options, nullptr, none, absl::UnavailableError("none"));
  ASSERT_TRUE(comm.ok());
  EXPECT_EQ((*comm)->world_size(), 1);
  options.world_size = 2;
  options.rank_hosts = {"a"};
  EXPECT_TRUE(absl::IsInvalidArgument(
      JoinDeviceGroup(options, nullptr, none, absl::UnavailableError("none")).status()));
}

// Real processes: one is killed while nothing is under way on the host.
TEST(DeviceGroupProcesses, KilledPeerIsKnownSoon) {
  const std::string group = UniqueName();
  RankProcesses ranks(2, [&](int r) {
    auto notes = std::make_shared<FakePeersNotes>();
    GroupOptions options{.group_name = group, .rank = r, .world_size = 2};
    auto device = Device::CreateCpu({.num_threads = 1});
    const MakePeers make = [&](const PeerOptions& peers) { return FakePeers::Make(peers, notes); };
    auto comm = JoinDeviceGroup(options, device->get(), make, absl::UnavailableError("there is no NCCL"));
    if (!comm.ok() || !(*comm)->Barrier().ok()) return 1;
    if (r == 1) {
      absl::SleepFor(absl::Seconds(30));
      return 0;
    }
    if (!Soon([&] { return absl::IsUnavailable((*comm)->status()); })) return 2;
    return Soon([&] {
      absl::MutexLock lock(&notes->mu);
      return notes->stopped;
    })
               ? 0
               : 3;
  });
  absl::SleepFor(absl::Milliseconds(500));
  ranks.Kill(1);
  EXPECT_EQ(ranks.Wait(0), 0);
}

TEST(CollectivePlanTest, ChoosesBySizeWhereThereIsAChoice) {
  for (const PeerLink link : {PeerLink::kNvLink, PeerLink::kPcie}) {
    for (int world_size = 2; world_size <= kMaxPeers; ++world_size) {
      const CollectiveWays both = {world_size, true, true, link};
      const CollectiveWays peers = {world_size, true, false, link};
      const CollectiveWays nccl = {world_size, false, true, link};
      const int64_t limit = PeerReduceLimit(world_size, link), gathers = PeerGatherLimit(world_size, link);
      EXPECT_GE(limit, link == PeerLink::kNvLink ? 512 << 10 : 64 << 10);
      EXPECT_TRUE(ReducesByPeers(both, limit));
      EXPECT_FALSE(ReducesByPeers(both, limit + 1));
      EXPECT_TRUE(ReducesByPeers(peers, int64_t{1} << 40));
      EXPECT_FALSE(ReducesByPeers(nccl, 1));
      EXPECT_TRUE(GathersByPeers(both, gathers));
      EXPECT_FALSE(GathersByPeers(both, gathers + 1));
      EXPECT_TRUE(GathersByPeers(peers, int64_t{1} << 40));
      EXPECT_FALSE(GathersByPeers(nccl, 1));
    }
  }
}

}  // namespace
}  // namespace somnus
