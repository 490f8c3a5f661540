// Links between stages: bytes in order, a bounded lead of the sender, and ends of waits when the other end
// has died, has aborted, or sends something else. Through shared memory and over TCP; each end is a process.

#include "worker/comm/stage_link.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/comm/rank_processes.h"
#include "tests/fakes/unique_name.h"
#include "worker/comm/communicator.h"
#include "worker/comm/host_group.h"
#include "worker/comm/pipeline_communicator.h"

namespace somnus {
namespace {

constexpr int kSender = StageLink::kSender, kReceiver = StageLink::kReceiver;

// A one-way link from a process to the next.
class LinkTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    options_.group_name = UniqueName();
    options_.world_size = 2;
    options_.numbers = {4, 6};
    options_.buffer_bytes = 1 << 16;
    options_.collective_timeout = absl::Seconds(60);
    if (!GetParam()) return;
    options_.secret = "0123456789abcdef";
    absl::StatusOr<TcpListener> listener = ListenOnTcp("127.0.0.1");
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    options_.rank_addresses = {absl::StrCat("127.0.0.1:", listener_.port), "127.0.0.1:1"};
  }

  // In the process of that end.
  absl::StatusOr<std::unique_ptr<StageLink>> Join(int end) {
    TcpListener listener = std::move(listener_);
    options_.rank = end;
    return JoinHostLink(options_, end == kSender ? std::move(listener) : TcpListener());
  }

  GroupOptions options_;
  TcpListener listener_;
};

INSTANTIATE_TEST_SUITE_P(Ways, LinkTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Tcp" : "SharedMemory"; });

std::vector<char> Message(size_t number, size_t size) {
  std::vector<char> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(number * 31 + i * 7 + (i >> 8));
  return bytes;
}

// None, a few bytes, the ends of a buffer, and several buffers.
constexpr size_t kSizes[] = {0, 1, 4096, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 1 << 20, 12345};

TEST_P(LinkTest, BringsMessagesInOrder) {
  RankProcesses ends(2, [this](int end) {
    const auto link = Join(end);
    if (!link.ok()) return 2;
    for (int round = 0; round < 3; ++round) {
      for (size_t i = 0; i < std::size(kSizes); ++i) {
        const std::vector<char> expected = Message(i + round, kSizes[i]);
        std::vector<char> got(expected.size());
        const absl::Status status =
            end == kSender ? (*link)->Send(expected.data(), static_cast<int64_t>(expected.size()))
                           : (*link)->Receive(got.data(), static_cast<int64_t>(got.size()));
        if (!status.ok()) return 3;
        if (end == kReceiver && got != expected) return 4;
      }
    }
    return 0;
  });
  EXPECT_TRUE(ends.AllGood());
}

TEST_P(LinkTest, LetsTheSenderGoOnBeforeTheReceiverComes) {
  int done[2];
  ASSERT_EQ(pipe(done), 0);
  RankProcesses ends(2, [&](int end) {
    const auto link = Join(end);
    if (!link.ok()) return 2;
    const std::vector<char> message = Message(1, 1000);
    std::vector<char> got(1000);
    char byte = 1;
    if (end == kSender) {
      for (int i = 0; i < 2; ++i) {
        if (!(*link)->Send(message.data(), 1000).ok()) return 3;
      }
      if (write(done[1], &byte, 1) != 1) return 4;
      return 0;
    }
    if (read(done[0], &byte, 1) != 1) return 5;  // both messages were sent by now
    for (int i = 0; i < 2; ++i) {
      if (!(*link)->Receive(got.data(), 1000).ok() || got != message) return 6;
    }
    return 0;
  });
  EXPECT_TRUE(ends.AllGood());
}

TEST_P(LinkTest, ExchangesBetweenMessages) {
  RankProcesses ends(2, [&](int end) {
    const auto link = Join(end);
    if (!link.ok()) return 2;
    for (size_t i = 0; i < 40; ++i) {
      const size_t size = i % 3 == 0 ? 4096 : 17;
      const std::vector<char> mine = Message(2 * i + end, size), expected = Message(2 * i + 1 - end, size);
      std::vector<char> theirs(size);
      if (!(*link)->Exchange(mine.data(), theirs.data(), static_cast<int64_t>(size)).ok()) return 3;
      if (theirs != expected) return 4;
      for (size_t k = 0; k < i % 4; ++k) {  // the sender's lead varies
        const std::vector<char> message = Message(100 * i + k, 5000);
        std::vector<char> got(5000);
        if (end == kSender && !(*link)->Send(message.data(), 5000).ok()) return 5;
        if (end == kReceiver && (!(*link)->Receive(got.data(), 5000).ok() || got != message)) return 6;
      }
    }
    return 0;
  });
  EXPECT_TRUE(ends.AllGood());
}

// The end that stays returns 0 where the wait ends in an error that contains `part`.
int ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& part) {
  if (status.code() == code && status.message().find(part) != absl::string_view::npos) return 0;
  fprintf(stderr, "got: %s\n", status.ToString().c_str());
  return 9;
}

TEST_P(LinkTest, EndsTheWaitForAnEndThatDied) {
  for (const int dying : {kSender, kReceiver}) {
    SetUp();
    RankProcesses ends(2, [&](int end) {
      const auto link = Join(end);
      if (!link.ok()) return 2;
      if (end == dying) pause();
      std::vector<char> bytes(8 << 20);
      absl::Status status;
      // A sender notices once the buffers between the ends are full.
      for (int i = 0; i < 64 && status.ok(); ++i) {
        status = end == kSender ? (*link)->Send(bytes.data(), 8 << 20) : (*link)->Receive(bytes.data(), 8);
      }
      const bool later = !(*link)->Receive(bytes.data(), 8).ok() || !(*link)->Send(bytes.data(), 8).ok();
      if (!later) return 3;
      return ExpectError(status, absl::StatusCode::kUnavailable, dying == kSender ? "rank 4" : "rank 6");
    });
    absl::SleepFor(absl::Milliseconds(300));  // the other end waits by now, mostly
    ends.Kill(dying);
    EXPECT_EQ(ends.Wait(1 - dying), 0);
    ends.Wait(dying);
  }
}

TEST_P(LinkTest, EndsTheWaitByAnAbort) {
  int joined[2];
  ASSERT_EQ(pipe(joined), 0);
  RankProcesses ends(2, [&](int end) {
    const auto link = Join(end);
    if (!link.ok()) return 2;
    char byte = 0;
    if (end == kReceiver && write(joined[1], &byte, 1) != 1) return 3;
    if (end == kSender) {
      if (read(joined[0], &byte, 1) != 1) return 4;
      (*link)->Abort("no longer wanted");
      (*link)->Abort("a later reason");
      absl::Status status;
      for (int i = 0; i < 4 && status.ok(); ++i) status = (*link)->Send(&byte, 1);
      return ExpectError(status, absl::StatusCode::kAborted, "no longer wanted");
    }
    return ExpectError((*link)->Receive(&byte, 1), absl::StatusCode::kAborted, "no longer wanted");
  });
  EXPECT_EQ(ends.Wait(kReceiver), 0);
}

TEST_P(LinkTest, RefusesAMessageOfAnotherSize) {
  RankProcesses ends(2, [&](int end) {
    const auto link = Join(end);
    if (!link.ok()) return 2;
    std::vector<char> bytes(200);
    if (end == kSender) return (*link)->Send(bytes.data(), 100).ok() ? 0 : 3;
    return ExpectError((*link)->Receive(bytes.data(), 200), absl::StatusCode::kInternal, "");
  });
  EXPECT_EQ(ends.Wait(kReceiver), 0);
}

TEST_P(LinkTest, RefusesAMessageWhereAnExchangeIsDue) {
  RankProcesses ends(2, [&](int end) {
    const auto link = Join(end);
    if (!link.ok()) return 2;
    char mine[17] = {}, theirs[17];
    if (end == kSender) return (*link)->Send(mine, 17).ok() ? 0 : 3;
    return ExpectError((*link)->Exchange(mine, theirs, 17), absl::StatusCode::kInternal, "");
  });
  EXPECT_EQ(ends.Wait(kReceiver), 0);
}

// Rank 0 waits for rank 1, which is in a later stage and waits in a collective for rank 2, which dies.
TEST(PipelineCommunicatorTest, ALossEndsTheWaitsOfOtherStages) {
  const std::string name = UniqueName();
  const auto options = [&name](const std::string& part, int rank) {
    GroupOptions group;
    group.group_name = absl::StrCat(name, part);
    group.rank = rank;
    group.world_size = 2;
    group.buffer_bytes = 4096;
    return group;
  };
  RankProcesses ranks(3, [&](int rank) {
    std::unique_ptr<Communicator> stage = MakeSingleCommunicator();
    if (rank > 0) {
      auto joined = MakeShmCommunicator(options("-s1", rank - 1));
      if (!joined.ok()) return 2;
      stage = *std::move(joined);
    }
    if (rank == 2) pause();
    auto link = MakeShmLink(options("-l0", rank == 0 ? kSender : kReceiver));
    if (!link.ok()) return 3;
    const auto pipeline = rank == 0 ? MakePipelineCommunicator(std::move(stage), nullptr, *std::move(link))
                                    : MakePipelineCommunicator(std::move(stage), *std::move(link), nullptr);
    std::vector<char> bytes(1 << 16);
    float number = 1;
    const absl::Status status =
        rank == 0 ? pipeline->SendToNextStage(bytes.data(), static_cast<int64_t>(bytes.size()))
                  : pipeline->AllReduceSum(&number, 1, DataType::kF32);
    if (status.ok() || pipeline->status().ok()) return 4;
    if (rank == 0 && !absl::IsFailedPrecondition(pipeline->ReceiveFromPreviousStage(bytes.data(), 1)))
      return 5;
    return 0;
  });
  absl::SleepFor(absl::Milliseconds(300));
  ranks.Kill(2);
  EXPECT_EQ(ranks.Wait(0), 0);
  EXPECT_EQ(ranks.Wait(1), 0);
}

}  // namespace
}  // namespace somnus
