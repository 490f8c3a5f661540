// How ranks of a pipeline connect, each a thread of this process: what the links between GPUs are made from.

#include "worker/join_ranks.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tests/fakes/unique_name.h"

namespace somnus {
namespace {

constexpr int kRanks = 3;  // a stage each

class LinkOfGpus : public StageLink {
 public:
  explicit LinkOfGpus(std::unique_ptr<StageLink> host) : host_(std::move(host)) {}
  bool stream_ordered() const override { return true; }
  absl::Status Send(const void* data, int64_t bytes) override { return host_->Send(data, bytes); }
  absl::Status Receive(void* data, int64_t bytes) override { return host_->Receive(data, bytes); }
  void Abort(const std::string& reason) override { host_->Abort(reason); }
  absl::Status status() const override { return host_->status(); }

 private:
  const std::unique_ptr<StageLink> host_;
};

class JoinRanksTest : public testing::Test {
 protected:
  // Every rank joins, and rank 0's message goes through rank 1 to rank 2.
  void PassAMessage(const JoinDevices& devices, bool stream_ordered) {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        v1::ParallelConfig parallel = parallel_;
        parallel.set_rank(rank);
        auto joined = JoinRanks(parallel, GroupOptions(), GroupPorts(), devices);
        ASSERT_TRUE(joined.ok()) << joined.status();
        EXPECT_EQ((*joined)->receives_on_stream(), rank > 0 && stream_ordered);
        EXPECT_EQ((*joined)->sends_on_stream(), rank < kRanks - 1 && stream_ordered);
        int word = rank == 0 ? 77 : 0;
        absl::Status status;
        if (rank > 0) status = (*joined)->ReceiveFromPreviousStage(&word, sizeof(word));
        EXPECT_TRUE(status.ok()) << status;
        EXPECT_EQ(word, 77);
        if (rank < kRanks - 1) status = (*joined)->SendToNextStage(&word, sizeof(word));
        EXPECT_TRUE(status.ok()) << status;
        EXPECT_TRUE((*joined)->Barrier().ok());
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  JoinRanksTest() {
    parallel_.set_world_size(kRanks);
    parallel_.set_num_stages(kRanks);
    parallel_.set_group_name(UniqueName());
    for (int sender = 0; sender < kRanks - 1; ++sender)
      parallel_.add_nccl_link_ids(absl::StrCat("made by rank ", sender));
  }

  v1::ParallelConfig parallel_;
};

TEST_F(JoinRanksTest, LinksOfGpusHaveTheIdsOfTheirSenders) {
  absl::Mutex mu;
  int links = 0;
  JoinDevices devices;
  devices.stage = [](const GroupOptions&) -> absl::StatusOr<std::unique_ptr<Communicator>> {
    return absl::InternalError("a stage has one rank");
  };
  devices.link = [&](const GroupOptions& options, std::unique_ptr<StageLink> host) {
    absl::MutexLock lock(&mu);
    ++links;
    EXPECT_EQ(options.world_size, 2);
    EXPECT_EQ(options.numbers[1], options.numbers[0] + 1);
    EXPECT_EQ(options.nccl_unique_id, absl::StrCat("made by rank ", options.numbers[0]));
    return std::make_unique<LinkOfGpus>(std::move(host));
  };
  PassAMessage(devices, /*stream_ordered=*/true);
  EXPECT_EQ(links, 4) << "two ends of two links";
}

TEST_F(JoinRanksTest, LinksOfCpusAreThoseOfTheHost) { PassAMessage({}, /*stream_ordered=*/false); }

}  // namespace
}  // namespace somnus
