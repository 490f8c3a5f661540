// Changes of the weights over ranks of which some refuse, fail or end.

#include <thread>

#include "absl/strings/match.h"
#include "tests/executor/group_epoch_fixture.h"

namespace somnus {
namespace {

using Calls = std::vector<std::string>;

class GroupWeightsTest : public GroupEpochTest {
 protected:
  GroupWeights& weights() { return *epoch_->weights(); }
  absl::Status Send(const std::string& name) {
    v1::WeightChunk chunk;
    chunk.set_name(name);
    return weights().Send("u", chunk);
  }
};

TEST_F(GroupWeightsTest, EveryRankReads) {
  Connect(2);
  const WeightsOutcome outcome = weights().Reload("new", 2);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.fingerprint, "of new");
  for (const auto& worker : workers_) {
    EXPECT_EQ(worker->calls(), (Calls{"fence 1", "reload new"}));
    EXPECT_EQ(worker->Snapshot().weights_version(), 0) << "of a worker that has loaded nothing";
  }
  EXPECT_FALSE(weights().reads_weights());
}

TEST_F(GroupWeightsTest, WhatAllRefuseHasTouchedNothing) {
  Connect(2);
  for (const auto& worker : workers_) worker->FailNextCall(absl::InvalidArgumentError("no such file"));
  const WeightsOutcome outcome = weights().Reload("none", 2);
  EXPECT_TRUE(outcome.untouched);
  EXPECT_EQ(outcome.status, absl::InvalidArgumentError("rank 0 (pid 70): no such file"));
}

TEST_F(GroupWeightsTest, WhatOneRefusesHasTouchedTheOthers) {
  Connect(2);
  workers_[1]->FailNextCall(absl::InvalidArgumentError("no such file"));
  const WeightsOutcome outcome = weights().Reload("none", 2);
  EXPECT_FALSE(outcome.untouched);
  EXPECT_EQ(outcome.status, absl::InvalidArgumentError("rank 1 (pid 71): no such file"));
}

TEST_F(GroupWeightsTest, WhatOneFailsHasTouchedSomething) {
  Connect(1);
  workers_[0]->FailNextCall(absl::DataLossError("a short file"));
  EXPECT_FALSE(weights().Reload("short", 2).untouched);
}

TEST_F(GroupWeightsTest, RanksThatReadOtherFilesDoNotServeTogether) {
  Connect(2);
  workers_[1]->SetFingerprint("beef");
  const WeightsOutcome outcome = weights().Reload("", 2);
  EXPECT_TRUE(absl::IsDataLoss(outcome.status)) << outcome.status;
  EXPECT_FALSE(outcome.untouched);
}

TEST_F(GroupWeightsTest, AReloadWhoseReplyIsLostIsAskedForAgain) {
  Connect(2);
  workers_[1]->LoseReplies(1);
  EXPECT_TRUE(weights().Reload("new", 2).status.ok());
  EXPECT_EQ(workers_[1]->calls(), (Calls{"fence 1", "reload new"})) << "and done once";
}

TEST_F(GroupWeightsTest, ATensorThatIsNotKnownEndsTheUpdate) {
  Connect(2);
  ASSERT_TRUE(weights().BeginUpdate("u").status.ok());
  ASSERT_TRUE(Send("known").ok());
  // The error of a stream comes when it can: at a later chunk, or at the end.
  absl::Status status;
  while (status.ok()) status = Send("unknown");
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_TRUE(absl::EndsWith(status.message(), "): there is no tensor 'unknown'")) << "of either rank";
  EXPECT_FALSE(weights().FinishUpdate(2).status.ok());
}

TEST_F(GroupWeightsTest, AnErrorThatComesAfterTheLastChunkIsFound) {
  Connect(2);
  ASSERT_TRUE(weights().BeginUpdate("u").status.ok());
  ASSERT_TRUE(Send("unknown").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(weights().FinishUpdate(2).status));
}

TEST_F(GroupWeightsTest, AnUpdateWithoutAChunk) {
  Connect(2);
  ASSERT_TRUE(weights().BeginUpdate("u").status.ok());
  const WeightsOutcome outcome = weights().FinishUpdate(2);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.received.num_tensors, 0);
}

TEST_F(GroupWeightsTest, ADirectUpdateHasPortsOfAllRanks) {
  Connect(2);
  const WeightsOutcome begun = weights().BeginUpdate("u", "secret");
  ASSERT_TRUE(begun.status.ok()) << begun.status;
  ASSERT_EQ(begun.ports.size(), 2u);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(begun.ports[rank].address(), "port for secret");
    EXPECT_EQ(begun.ports[rank].group_epoch(), 1);
    EXPECT_EQ(begun.ports[rank].update_id(), "u");
    EXPECT_EQ(begun.ports[rank].rank(), rank);
  }
  ASSERT_TRUE(Send("a").ok()) << "what the client cannot send there";
  EXPECT_TRUE(weights().FinishUpdate(2, ReceivedWeights{.num_tensors = 1}).status.ok());
  EXPECT_EQ(workers_[1]->chunks(), Calls{"a"});
}

TEST_F(GroupWeightsTest, WhereOneRankHasNoPortNoneIsUsed) {
  Connect(2);
  workers_[1]->EditWeights([](FakeWeights* weights) { weights->TakePorts(); });
  const WeightsOutcome begun = weights().BeginUpdate("u", "secret");
  EXPECT_TRUE(begun.status.ok()) << begun.status;
  EXPECT_TRUE(begun.ports.empty());
  ASSERT_TRUE(Send("a").ok());
  EXPECT_TRUE(weights().FinishUpdate(2).status.ok());
  workers_[0]->EditWeights(
      [](FakeWeights* weights) { EXPECT_TRUE(weights->port_is_held()) << "and closes with the update"; });
}

TEST_F(GroupWeightsTest, ThePortsOfAnUpdateThatARankRefusesAreClosed) {
  Connect(2);
  workers_[1]->FailNextCall(absl::InternalError("no memory"));
  const WeightsOutcome begun = weights().BeginUpdate("u", "secret");
  EXPECT_EQ(begun.status, absl::InternalError("rank 1 (pid 71): no memory"));
  EXPECT_TRUE(begun.ports.empty());
  workers_[0]->EditWeights([](FakeWeights* weights) {
    EXPECT_TRUE(weights->port_is_held()) << "by a stream that has ended since";
  });
  EXPECT_TRUE(absl::IsFailedPrecondition(Send("a"))) << "no update is under way";
  ASSERT_TRUE(weights().BeginUpdate("u", "secret").status.ok());
  EXPECT_TRUE(weights().FinishUpdate(2).status.ok());
}

TEST_F(GroupWeightsTest, OtherTensorsThanWereSentAreNotServed) {
  Connect(2);
  ASSERT_TRUE(weights().BeginUpdate("u", "secret").status.ok());
  const WeightsOutcome outcome = weights().FinishUpdate(2, ReceivedWeights{.num_tensors = 1, .num_bytes = 7});
  EXPECT_EQ(outcome.status,
            absl::DataLossError("received: the workers have got 0 tensors of 0 bytes, and not "
                                "those 1 tensors of 7 bytes"));
  EXPECT_EQ(workers_[0]->calls(), (Calls{"fence 1", "begin update"})) << "no rank has a new version";
}

TEST_F(GroupWeightsTest, RanksThatGotOtherTensorsDoNotServeTogether) {
  Connect(2);
  ASSERT_TRUE(weights().BeginUpdate("u", "secret").status.ok());
  workers_[1]->EditWeights([](FakeWeights* weights) { weights->ReceiveAtPort(); });
  const absl::Status status = weights().FinishUpdate(2).status;
  EXPECT_EQ(status,
            absl::DataLossError("rank 1 (pid 71) has got 1 tensors of 0 bytes, and not those 0 tensors "
                                "of 0 bytes that rank 0 has got"));
}

TEST_F(GroupWeightsTest, ALossEndsTheStreams) {
  Connect(2, /*blame_grace=*/absl::Minutes(1));
  ASSERT_TRUE(weights().BeginUpdate("u").status.ok());
  ASSERT_TRUE(Send("a").ok());
  const absl::Status loss = absl::UnavailableError("rank 1 (pid 71) was killed by signal 9 (Killed)");
  epoch_->ReportLoss(loss);
  absl::Status status;
  while (status.ok()) status = Send("a");
  EXPECT_EQ(status, loss);
}

TEST_F(GroupWeightsTest, ACancelEndsTheStreams) {
  Connect(2);
  ASSERT_TRUE(weights().BeginUpdate("u").status.ok());
  ASSERT_TRUE(Send("a").ok());
  weights().CancelUpdate();
  absl::Status status;
  while (status.ok()) status = Send("a");
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_TRUE(epoch_->Health().ok());
  EXPECT_TRUE(weights().Reload("", 2).status.ok());
}

// The worker's process lives and sends heartbeats, so no further check finds the hang.
TEST_F(GroupWeightsTest, ARankThatTakesNothingEndsTheUpdate) {
  options_.lifecycle_timeout = absl::Seconds(2);
  Connect(2);
  workers_[1]->HoldStreams();
  const absl::Status stuck =
      absl::DeadlineExceededError("rank 1 (pid 71) has taken nothing of the update for 2s");
  ASSERT_TRUE(weights().BeginUpdate("u").status.ok());
  v1::WeightChunk chunk;
  chunk.set_name("a");
  chunk.set_data(std::string(1 << 20, 'x'));
  absl::Status status;
  while (status.ok()) status = weights().Send("u", chunk);
  EXPECT_EQ(status, stuck);
  ASSERT_TRUE(weights().BeginUpdate("v").status.ok());
  ASSERT_TRUE(weights().Send("v", v1::WeightChunk()).ok());
  EXPECT_EQ(weights().FinishUpdate(2).status, stuck);
}

TEST_F(GroupWeightsTest, RanksThatAreNotStaleAreMadeSo) {
  Connect(2);
  std::vector<v1::WorkerSnapshot> ranks(2);
  ranks[0].set_weights_stale(true);
  EXPECT_TRUE(*weights().MakeStale(ranks));
  EXPECT_EQ(workers_[0]->calls(), Calls{"fence 1"});
  EXPECT_EQ(workers_[1]->calls(), (Calls{"fence 1", "begin update"}));
  ranks[1].set_weights_stale(true);
  EXPECT_FALSE(*weights().MakeStale(ranks));
}

}  // namespace
}  // namespace somnus
