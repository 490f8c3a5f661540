// Pinned prefixes of several replicas.

#include "coordinator/replicas/replica_prefixes.h"

#include "tests/replicas/replica_set_fixture.h"

namespace somnus {
namespace {

class ReplicaPrefixesTest : public ReplicaSetTest {
 protected:
  // In blocks of 4 tokens.
  static PrefixRequest MakePin(const std::string& id, int32_t num_tokens, int32_t first = 1) {
    return {.id = id, .prompt = MakeTicket("", num_tokens, 0, first).request.prompt};
  }
  PinnedPrefixes& pins() { return set_->pinned_prefixes(); }
};
INSTANTIATE_TEST_SUITE_P(Overlap, ReplicaPrefixesTest, ::testing::Bool());

TEST_P(ReplicaPrefixesTest, EveryReplicaPinsAndTheFewestHeldBlocksCount) {
  Start();
  ASSERT_TRUE(pins().Pin(MakePin("a", 20)).ok());
  ExpectExact({Submit("1", 20, 4)});
  EXPECT_EQ(set_->Stats().pinned_blocks, 5);
  ASSERT_EQ(pins().List().size(), 1u);
  EXPECT_EQ(pins().List()[0].num_blocks, 5);
  EXPECT_EQ(pins().List()[0].num_held, 0) << "one replica has computed it";
  // The replica that has the prefix is lost, so that another replica computes the prefix.
  const bool first = set_->Stats().replicas[0].num_requests == 1;
  executors_[first ? 0 : 1]->Lose(kLoss);
  AwaitReplica(first ? 0 : 1, EngineState::kRecovering);
  ExpectExact({Submit("2", 20, 4)});
  EXPECT_EQ(set_->Stats().pinned_blocks, 5);
  ASSERT_TRUE(pins().Unpin("a").ok());
  EXPECT_TRUE(absl::IsNotFound(pins().Unpin("a")));
  EXPECT_TRUE(pins().List().empty());
  Await([&] { return set_->Stats().pinned_blocks == 0; });
}

// A replica that takes no pin.
class FullPrefixes : public PinnedPrefixes {
 public:
  absl::StatusOr<PinnedPrefix> Pin(const PrefixRequest&) override {
    return absl::ResourceExhaustedError("full");
  }
  void Withdraw(const std::string&) override {}
  absl::Status Unpin(const std::string&) override { return absl::NotFoundError("none"); }
  std::vector<PinnedPrefix> List() const override { return {}; }
};

TEST(ReplicaPrefixesAtomicTest, APinThatOneReplicaRefusesIsTakenBackAtTheOthers) {
  SchedulerOptions options = SmallEngine().scheduler;
  PrefixBook book({}, options, [] {});
  FullPrefixes full;
  const auto prefixes = MakeReplicaPrefixes({&book, &full});
  EXPECT_TRUE(absl::IsResourceExhausted(
      prefixes->Pin({.id = "a", .prompt = MakeTicket("", 20, 0).request.prompt}).status()));
  EXPECT_TRUE(book.List().empty());
}

}  // namespace
}  // namespace somnus
