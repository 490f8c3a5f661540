// Groups over TCP that cannot form or go on: an error soon, on every rank, never a hang; and strangers.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>

#include "absl/time/clock.h"
#include "base/running_clock.h"
#include "tests/comm/tcp_group.h"

namespace somnus {
namespace {

using ::testing::HasSubstr;

TEST(TcpFailure, WhatALeavingRankHasSentStillArrives) {
  TcpGroup group(2);
  RankProcesses ranks(2, [&](int r) {
    auto comm = group.Join(r);
    if (!comm.ok()) return 1;
    std::vector<float> data(1 << 20, 1.0f);
    for (int i = 0; i < 3; ++i) {
      if (!(*comm)->AllReduceSum(data.data(), 1 << 20, DataType::kF32).ok()) return 2;
    }
    return data[12345] == 8 ? 0 : 3;  // and leaves at once
  });
  EXPECT_TRUE(ranks.AllGood());
}

// The rank that gives up first tells the rest why.
TEST(TcpFailure, ATimeoutIsTheSameOnEveryRank) {
  TcpGroup group(3);
  group.options().collective_timeout = absl::Milliseconds(400);
  RankProcesses ranks(3, [&](int r) {
    auto comm = group.Join(r);
    if (!comm.ok()) return 1;
    if (r == 1) return absl::SleepFor(absl::Seconds(60)), 0;
    return absl::IsDeadlineExceeded((*comm)->Barrier()) ? 0 : 2;
  });
  EXPECT_EQ(ranks.Wait(0), 0);
  EXPECT_EQ(ranks.Wait(2), 0);
}

// A rank that is stopped while it receives many bytes is late, not lost: the rank's host still answers.
TEST(TcpFailure, ARankThatStandsStillForAWhileIsNotLost) {
  TcpGroup group(2);
  group.options().unreachable_timeout = absl::Seconds(2);
  RankProcesses ranks(2, [&](int r) {
    auto comm = group.Join(r);
    if (!comm.ok()) return 1;
    const int64_t count = 16 << 20;
    std::vector<char> all(2 * count);
    if (r == 1) absl::SleepFor(absl::Seconds(4));
    return (*comm)->AllGather(all.data() + r * count, count, all.data()).ok() ? 0 : 2;
  });
  EXPECT_TRUE(ranks.AllGood());
}

absl::Status JoinStatus(TcpGroup& group, int rank) { return group.Join(rank).status(); }

TEST(TcpFailure, AMissingRankIsNamed) {
  TcpGroup group(3);
  group.options().connect_timeout = absl::Milliseconds(300);
  // The port of rank 1 is open, but nobody answers there.
  RankProcesses ranks(3, [&](int r) {
    if (r == 1) return absl::SleepFor(absl::Seconds(20)), 0;
    const absl::Status status = JoinStatus(group, r);
    const bool named = status.message().find("no sign of rank 1") != status.message().npos;
    // The rank that gives up first takes the other rank along.
    return (absl::IsDeadlineExceeded(status) && named) || absl::IsUnavailable(status) ? 0 : 1;
  });
  EXPECT_EQ(ranks.Wait(0), 0);
  EXPECT_EQ(ranks.Wait(2), 0);
}

TEST(TcpFailure, ARankThatDiesBeforeItIsReachedIsNamed) {
  TcpGroup group(2);
  group.options().connect_timeout = absl::Seconds(60);
  RankProcesses ranks(2, [&](int r) {
    if (r == 0) return 0;  // the port closes with the process
    const absl::Status status = JoinStatus(group, r);
    const bool named = status.message().find("rank 0 at 127.0.0.1:") != status.message().npos;
    return absl::IsUnavailable(status) && named ? 0 : 1;
  });
  group.CloseAll();
  EXPECT_TRUE(ranks.AllGood());
}

// Ranks 0 and 1 have met, and wait for rank 2.
TEST(TcpFailure, ARankThatDiesWhileTheGroupFormsEndsItAtOnce) {
  for (const int victim : {0, 1}) {
    TcpGroup group(3);
    group.options().connect_timeout = absl::Seconds(60);
    RankProcesses ranks(3, [&](int r) {
      if (r == 2) return absl::SleepFor(absl::Seconds(60)), 0;
      return absl::IsUnavailable(JoinStatus(group, r)) ? 0 : 1;
    });
    group.CloseAll();
    absl::SleepFor(absl::Milliseconds(300));
    const absl::Time killed = absl::Now();
    ranks.Kill(victim);
    EXPECT_EQ(ranks.Wait(1 - victim), 0) << victim;
    EXPECT_LT(absl::Now() - killed, absl::Seconds(30));
  }
}

TEST(TcpFailure, AGroupThatIsNotWantedAnyLongerEndsTheWait) {
  for (const int rank : {0, 1}) {  // a rank that listens, a rank that connects
    TcpGroup group(2);
    const absl::StatusOr<TcpListener> silent = ListenOnTcp("127.0.0.1");
    ASSERT_TRUE(silent.ok());
    group.options().rank_addresses[0] = absl::StrCat("127.0.0.1:", silent->port);
    int asked = 0;
    group.options().cancelled = [&] { return ++asked >= 3; };
    const absl::Status status = JoinStatus(group, rank);
    EXPECT_TRUE(absl::IsAborted(status)) << status;
  }
}

TEST(TcpFailure, AnotherSecretIsRefused) {
  TcpGroup group(2);
  group.options().connect_timeout = absl::Seconds(2);
  RankProcesses ranks(2, [&](int r) {
    if (r == 1) {
      group.options().secret = "fedcba9876543210";
      return absl::IsPermissionDenied(JoinStatus(group, 1)) ? 0 : 1;
    }
    const absl::Status status = JoinStatus(group, 0);
    const bool counted = status.message().find("refused: 2") != status.message().npos;
    return absl::IsDeadlineExceeded(status) && counted ? 0 : 2;
  });
  EXPECT_EQ(ranks.Wait(1), 0);
  EXPECT_EQ(ranks.Wait(0), 0);
}

UniqueFd Connect(int port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// The strangers are in the queue of rank 0's port before any rank.
TEST(TcpFailure, StrangersNeitherJoinNorHinder) {
  TcpGroup group(2);
  std::vector<UniqueFd> strangers;
  for (const std::string text : {"", "GET / HTTP/1.1\r\n\r\n", "SMNSTCP1"}) {
    strangers.push_back(Connect(group.port(0)));
    EXPECT_TRUE(SendBytes(strangers.back().get(), text.data(), text.size()).ok());
  }
  strangers.push_back(Connect(group.port(0)));
  const std::string garbage(1 << 16, '\xa5');
  EXPECT_TRUE(SendBytes(strangers.back().get(), garbage.data(), garbage.size()).ok());
  for (int i = 0; i < 100; ++i) strangers.push_back(Connect(group.port(0)));  // the strangers say nothing
  RankProcesses ranks(2, [&](int r) {
    auto comm = group.Join(r);
    float one = 1;
    return comm.ok() && (*comm)->AllReduceSum(&one, 1, DataType::kF32).ok() && one == 2 ? 0 : 1;
  });
  EXPECT_TRUE(ranks.AllGood());
}

// As where the address under which a host is reached is translated on the way.
TEST(TcpFailure, ForAnAddressOfAnotherHostThePortIsOpenOnAll) {
  const absl::StatusOr<TcpListener> listener = ListenOnTcp("192.0.2.1");
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_GE(Connect(listener->port).get(), 0);
}

// Nobody joins by repeating the messages of a rank of this group or of another group.
TEST(TcpFailure, AReplayedHandshakeIsRefused) {
  // Between rank 1 and rank 0 stands a process that listens, forwards, and keeps the messages.
  absl::StatusOr<TcpListener> middle = ListenOnTcp("127.0.0.1");
  ASSERT_TRUE(middle.ok());
  TcpGroup group(2);
  group.options().connect_timeout = absl::Seconds(2);
  std::string recorded;
  RankProcesses ranks(2, [&](int r) {
    if (r == 1) group.options().rank_addresses[0] = absl::StrCat("127.0.0.1:", middle->port);
    return absl::IsDeadlineExceeded(JoinStatus(group, r)) || r == 1 ? 0 : 1;
  });
  pollfd waiting = {middle->fd.get(), POLLIN, 0};
  ASSERT_EQ(poll(&waiting, 1, 5000), 1);
  absl::StatusOr<UniqueFd> victim = AcceptTcp(middle->fd.get());
  ASSERT_TRUE(victim.ok() && victim->get() >= 0);
  char hello[40], challenge[48], proof[32];
  const WaitLimit soon = {RunningNow() + absl::Seconds(5)};
  ASSERT_TRUE(ReceiveBytes(victim->get(), hello, sizeof(hello), soon).ok());
  // The real rank 0 answers the forwarded Hello, and rank 1 proves itself to the answer: relayed once.
  const UniqueFd relayed = Connect(group.port(0));
  ASSERT_TRUE(SendBytes(relayed.get(), hello, sizeof(hello)).ok());
  ASSERT_TRUE(ReceiveBytes(relayed.get(), challenge, sizeof(challenge), soon).ok());
  ASSERT_TRUE(SendBytes(victim->get(), challenge, sizeof(challenge)).ok());
  ASSERT_TRUE(ReceiveBytes(victim->get(), proof, sizeof(proof), soon).ok());
  // On a new connection the same Hello gets a new Challenge, which the old Proof does not answer.
  const UniqueFd replayed = Connect(group.port(0));
  char other[48];
  ASSERT_TRUE(SendBytes(replayed.get(), hello, sizeof(hello)).ok());
  ASSERT_TRUE(ReceiveBytes(replayed.get(), other, sizeof(other), soon).ok());
  EXPECT_NE(memcmp(challenge, other, sizeof(other)), 0);
  ASSERT_TRUE(SendBytes(replayed.get(), proof, sizeof(proof)).ok());
  EXPECT_TRUE(absl::IsUnavailable(ReceiveBytes(replayed.get(), other, 1, soon)));
  EXPECT_EQ(ranks.Wait(0), 0);
}

TEST(TcpFailure, BadOptionsAreNamed) {
  TcpGroup group(2);
  const auto message = [&](auto change) {
    GroupOptions options = group.options();
    change(options);
    const absl::Status status = MakeTcpCommunicator(options, TcpListener()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  using Options = GroupOptions;
  EXPECT_THAT(message([](Options& o) { o.group_name = "../x"; }), HasSubstr("group_name"));
  EXPECT_THAT(message([](Options& o) { o.rank = 2; }), HasSubstr("rank"));
  EXPECT_THAT(message([](Options& o) { o.world_size = 0; }), HasSubstr("world_size"));
  EXPECT_THAT(message([](Options& o) { o.world_size = 65; }), HasSubstr("world_size"));
  EXPECT_THAT(message([](Options& o) { o.rank_addresses.pop_back(); }), HasSubstr("rank_addresses"));
  EXPECT_THAT(message([](Options& o) { o.secret = "short"; }), HasSubstr("secret"));
  EXPECT_THAT(message([](Options& o) { o.buffer_bytes = 100; }), HasSubstr("buffer_bytes"));
  EXPECT_THAT(message([](Options& o) { o.unreachable_timeout = absl::Seconds(1); }),
              HasSubstr("unreachable_timeout"));
  EXPECT_THAT(message([](Options& o) { o.rank = 1, o.rank_addresses[0] = "nowhere"; }), HasSubstr("nowhere"));
}

}  // namespace
}  // namespace somnus
