// Links between GPUs, through a fake of NCCL: what the two ends agree upon, and that a wait ends when the
// other end has left, was aborted, or has failed. The ends are threads of this process.

#include "worker/comm/device_link.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/comm/fake_nccl.h"
#include "tests/fakes/unique_name.h"
#include "worker/comm/pipeline_communicator.h"

namespace somnus {
namespace {

constexpr int kFrom = StageLink::kSender, kTo = StageLink::kReceiver;

class DeviceLinkTest : public testing::Test {
 protected:
  struct End {
    GroupOptions options;
    std::string gpu;
    absl::StatusOr<const NcclApi*> nccl = absl::UnavailableError("not set");
    std::unique_ptr<Device> device = Device::CreateCpu(CpuDeviceOptions{.num_threads = 1}).value();
    absl::StatusOr<std::unique_ptr<StageLink>> joined = absl::UnknownError("not joined");
    StageLink& link() { return **joined; }
  };

  DeviceLinkTest() {
    const std::string name = UniqueName();
    for (const int end : {kFrom, kTo}) {
      ends_[end].options = {.group_name = name, .rank = end, .world_size = 2};
      ends_[end].options.numbers = {4, 6};
      ends_[end].options.nccl_unique_id = std::string(128, 'x');
      ends_[end].gpu = absl::StrCat("GPU ", end);
      ends_[end].nccl = &fake_.api();
    }
  }
  ~DeviceLinkTest() override {
    EachEnd([](End& end) { end.joined = absl::UnknownError("left"); });
    EXPECT_EQ(fake_.live_comms(), 0);
    EXPECT_TRUE(fake_.violations().empty()) << fake_.violations()[0];
  }

  void EachEnd(const std::function<void(End&)>& body) {
    std::thread other([&] { body(ends_[kTo]); });
    body(ends_[kFrom]);
    other.join();
  }
  void Join() {
    EachEnd([](End& end) {
      auto host = MakeShmLink(end.options);
      ASSERT_TRUE(host.ok()) << host.status();
      end.joined = JoinDeviceLink(end.options, end.gpu, end.device.get(), *std::move(host), end.nccl);
    });
  }
  // Both ends have joined, with this answer.
  void ExpectStreamOrdered(bool stream_ordered) {
    Join();
    for (End& end : ends_) {
      ASSERT_TRUE(end.joined.ok()) << end.joined.status();
      EXPECT_EQ(end.link().stream_ordered(), stream_ordered);
    }
  }
  // A message arrives, by whatever link there is.
  void ExpectArrival() {
    const std::string sent(100'000, 'm');
    std::string got(sent.size(), ' ');
    EachEnd([&](End& end) {
      const int64_t bytes = static_cast<int64_t>(sent.size());
      EXPECT_TRUE((end.options.rank == kFrom ? end.link().Send(sent.data(), bytes)
                                             : end.link().Receive(got.data(), bytes))
                      .ok());
    });
    EXPECT_EQ(got, sent);
  }
  // What the receiver's wait for a message that is never sent ends with, after `body`.
  absl::Status WaitWhile(const std::function<void()>& body) {
    absl::Status status;
    const int before = fake_.calls("ncclRecv");
    std::thread receiver([&] { status = ends_[kTo].link().Receive(&word_, sizeof(word_)); });
    while (fake_.calls("ncclRecv") == before) absl::SleepFor(absl::Milliseconds(1));
    body();
    receiver.join();
    return status;
  }

  FakeNccl fake_;
  std::array<End, 2> ends_;
  int64_t word_ = 0;
};

TEST_F(DeviceLinkTest, MessagesGoByNccl) {
  ExpectStreamOrdered(true);
  EXPECT_EQ(fake_.calls("ncclSend"), 1) << "the first message proves the link";
  ExpectArrival();
  ExpectArrival();
  EXPECT_EQ(fake_.calls("ncclSend"), 3);
  EXPECT_EQ(fake_.calls("ncclRecv"), 3);
  for (End& end : ends_) EXPECT_TRUE(end.link().status().ok());
}

TEST_F(DeviceLinkTest, PipelineKnowsWhichWaysAreQueued) {
  ExpectStreamOrdered(true);
  const auto first =
      MakePipelineCommunicator(MakeSingleCommunicator(), nullptr, *std::move(ends_[kFrom].joined));
  const auto last =
      MakePipelineCommunicator(MakeSingleCommunicator(), *std::move(ends_[kTo].joined), nullptr);
  EXPECT_TRUE(first->sends_on_stream() && !first->receives_on_stream());
  EXPECT_TRUE(!last->sends_on_stream() && last->receives_on_stream());
  EXPECT_TRUE(first->SendToNextStage(&word_, sizeof(word_)).ok());
  EXPECT_TRUE(last->ReceiveFromPreviousStage(&word_, sizeof(word_)).ok());
  EXPECT_TRUE(first->Suspend().ok());
  EXPECT_EQ(fake_.calls("ncclCommSuspend"), 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(first->SendToNextStage(&word_, sizeof(word_))));
  EXPECT_TRUE(first->status().ok()) << "a call at the wrong time is not the end";
  EXPECT_TRUE(first->Resume().ok());
  EXPECT_TRUE(first->SendToNextStage(&word_, sizeof(word_)).ok());
}

TEST_F(DeviceLinkTest, WithoutNcclOfOneEndTheHostsLinkStays) {
  ends_[kTo].nccl = absl::UnavailableError("there is no NCCL");
  ExpectStreamOrdered(false);
  EXPECT_EQ(fake_.calls("ncclCommInitRankConfig"), 0) << "nobody waits for an end that cannot come";
  ExpectArrival();
}

TEST_F(DeviceLinkTest, WithoutAnIdTheHostsLinkStays) {
  for (End& end : ends_) end.options.nccl_unique_id.clear();
  ExpectStreamOrdered(false);
  ExpectArrival();
}

TEST_F(DeviceLinkTest, StagesThatShareADeviceHaveTheHostsLink) {
  ends_[kTo].gpu = ends_[kFrom].gpu;
  ExpectStreamOrdered(false);
  EXPECT_EQ(fake_.calls("ncclCommInitRankConfig"), 0) << "it would refuse";
  ExpectArrival();
}

TEST_F(DeviceLinkTest, DevicesOfTwoHostsMayHaveTheSameName) {
  ends_[kTo].gpu = ends_[kFrom].gpu;
  for (End& end : ends_) end.options.rank_hosts = {"a", "b"};
  ExpectStreamOrdered(true);
}

TEST_F(DeviceLinkTest, NcclThatDoesNotStartAtOneEndIsUsedByNone) {
  fake_.Answer("ncclCommInitRankConfig", {nccl::kUnhandledCudaError});
  ExpectStreamOrdered(false);
  EXPECT_EQ(fake_.live_comms(), 0);
  ExpectArrival();
}

TEST_F(DeviceLinkTest, LinkThatBringsWrongBytesIsNotUsed) {
  fake_.Garble();
  ExpectStreamOrdered(false);
  EXPECT_EQ(fake_.calls("ncclRecv"), 1);
  EXPECT_EQ(fake_.live_comms(), 0);
  ExpectArrival();
}

TEST_F(DeviceLinkTest, FirstMessageThatFailsMeansTheHostsLink) {
  fake_.Answer("ncclRecv", {nccl::kInternalError});
  ExpectStreamOrdered(false);
  ExpectArrival();
}

TEST_F(DeviceLinkTest, JoiningEndsWhereTheEpochDoes) {
  EachEnd([](End& end) {
    auto host = MakeShmLink(end.options);
    ASSERT_TRUE(host.ok()) << host.status();
    end.options.cancelled = [] { return true; };
    end.joined = JoinDeviceLink(end.options, end.gpu, end.device.get(), *std::move(host), end.nccl);
  });
  for (End& end : ends_) EXPECT_TRUE(absl::IsAborted(end.joined.status())) << end.joined.status();
}

TEST_F(DeviceLinkTest, AbortEndsTheWaitOfTheOtherEnd) {
  ExpectStreamOrdered(true);
  const absl::Status status = WaitWhile([&] { ends_[kFrom].link().Abort("no longer wanted"); });
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_EQ(status.message(), "no longer wanted");
  EXPECT_EQ(ends_[kTo].link().status(), status);
  EXPECT_EQ(ends_[kTo].link().Receive(&word_, sizeof(word_)), status) << "the first cause stays";
  EXPECT_EQ(fake_.live_comms(), 0) << "what is queued must leave the device";
}

TEST_F(DeviceLinkTest, AbortEndsAWaitOfItsOwn) {
  ExpectStreamOrdered(true);
  const absl::Status status = WaitWhile([&] { ends_[kTo].link().Abort("rank 6 failed"); });
  EXPECT_TRUE(absl::IsAborted(status) && status.message() == "rank 6 failed") << status;
}

TEST_F(DeviceLinkTest, AnEndThatIsLostEndsTheWait) {
  ExpectStreamOrdered(true);
  const absl::Status status = WaitWhile([&] { ends_[kFrom].joined = absl::UnknownError("left"); });
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("rank 4"), std::string::npos) << status;
}

TEST_F(DeviceLinkTest, ErrorOfACallNamesTheRankAndReachesTheOtherEnd) {
  ExpectStreamOrdered(true);
  absl::Status lost;
  const absl::Status status = WaitWhile([&] {
    fake_.Answer("ncclSend", {nccl::kRemoteError});
    lost = ends_[kFrom].link().Send(&word_, sizeof(word_));
  });
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_EQ(lost.message().find("the link to rank 6: ncclSend"), 0u) << lost;
  EXPECT_EQ(ends_[kFrom].link().status(), lost);
  EXPECT_NE(status.message().find("the link to rank 6"), std::string::npos) << status;
}

// Nothing is under way on the host: the message waits on the device.
TEST_F(DeviceLinkTest, WatchdogFindsErrorsOfNccl) {
  ExpectStreamOrdered(true);
  fake_.SetAsyncError(nccl::kRemoteError);
  for (End& end : ends_) {
    while (end.link().status().ok()) absl::SleepFor(absl::Milliseconds(5));
    EXPECT_TRUE(absl::IsUnavailable(end.link().status()) || absl::IsAborted(end.link().status()))
        << end.link().status();
  }
  while (fake_.live_comms() > 0) absl::SleepFor(absl::Milliseconds(5));
}

}  // namespace
}  // namespace somnus
