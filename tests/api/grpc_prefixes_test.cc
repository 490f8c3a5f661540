// Pinned prefixes over gRPC.

#include <chrono>

#include "proto/prefixes.grpc.pb.h"
#include "tests/api/grpc_services_fixture.h"

namespace somnus {
namespace {

class GrpcPrefixesTest : public GrpcServicesTest {
 protected:
  void SetUp() override {
    GrpcServicesTest::SetUp();
    stub_ = v1::PrefixService::NewStub(channel_);
  }
  grpc::Status Pin(const v1::PinPrefixRequest& request, v1::PinnedPrefix* pinned) {
    grpc::ClientContext context;
    return stub_->PinPrefix(&context, request, pinned);
  }
  grpc::Status Unpin(const std::string& id) {
    grpc::ClientContext context;
    v1::UnpinPrefixRequest request;
    request.set_id(id);
    v1::UnpinPrefixResponse response;
    return stub_->UnpinPrefix(&context, request, &response);
  }
  grpc::Status List(const std::string& model, v1::ListPrefixesResponse* response) {
    grpc::ClientContext context;
    v1::ListPrefixesRequest request;
    request.set_model(model);
    return stub_->ListPrefixes(&context, request, response);
  }

  std::unique_ptr<v1::PrefixService::Stub> stub_;
};

TEST_F(GrpcPrefixesTest, APinIsMadeListedAndEnded) {
  v1::PinPrefixRequest request;
  request.set_text("0123456789abcdefg");
  v1::PinnedPrefix pinned, again;
  ASSERT_TRUE(Pin(request, &pinned).ok());
  EXPECT_EQ(pinned.model(), "fake");
  EXPECT_EQ(pinned.tokens(), 16);
  EXPECT_EQ(pinned.blocks(), 1);
  EXPECT_GT(pinned.created(), 1'600'000'000);
  request.clear_text();
  for (const char c : std::string("0123456789abcdef")) request.mutable_token_ids()->add_ids(c);
  ASSERT_TRUE(Pin(request, &again).ok());
  EXPECT_EQ(again.id(), pinned.id()) << "it has the same tokens";
  v1::ListPrefixesResponse list;
  ASSERT_TRUE(List("", &list).ok());
  ASSERT_EQ(list.prefixes_size(), 1);
  EXPECT_EQ(list.prefixes(0).SerializeAsString(), pinned.SerializeAsString());
  EXPECT_EQ(List("other", &list).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_TRUE(Unpin(pinned.id()).ok());
  EXPECT_EQ(Unpin(pinned.id()).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(GrpcPrefixesTest, ErrorsLeaveNothingPinned) {
  v1::PinnedPrefix pinned;
  v1::PinPrefixRequest request;
  EXPECT_EQ(Pin(request, &pinned).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_text("short");
  const grpc::Status none = Pin(request, &pinned);
  EXPECT_EQ(none.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(none.error_message(), "prompt: The prompt has 5 tokens, and only blocks of 16 can be pinned");
  request.set_text("0123456789abcdef");
  request.set_model("other");
  EXPECT_EQ(Pin(request, &pinned).error_code(), grpc::StatusCode::NOT_FOUND);
  request.clear_model();
  engine_->set_submit_status(absl::ResourceExhaustedError("the queue is full"));
  EXPECT_EQ(Pin(request, &pinned).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  engine_->set_submit_status(absl::OkStatus());
  engine_->FailAfter(0, absl::InternalError("bad logits"));
  EXPECT_EQ(Pin(request, &pinned).error_code(), grpc::StatusCode::INTERNAL);
  v1::ListPrefixesResponse list;
  ASSERT_TRUE(List("", &list).ok());
  EXPECT_EQ(list.prefixes_size(), 0);
}

TEST_F(GrpcPrefixesTest, ACallThatIsCancelledTakesThePinBack) {
  engine_->set_state(EngineState::kPaused);  // requests wait
  v1::PinPrefixRequest request;
  request.set_text("0123456789abcdef");
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  v1::PinnedPrefix pinned;
  EXPECT_EQ(stub_->PinPrefix(&context, request, &pinned).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  v1::ListPrefixesResponse list;
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  do {
    list.Clear();
    ASSERT_TRUE(List("", &list).ok());
    absl::SleepFor(absl::Milliseconds(2));
  } while (list.prefixes_size() > 0 && absl::Now() < deadline);
  EXPECT_EQ(list.prefixes_size(), 0);
}

}  // namespace
}  // namespace somnus
