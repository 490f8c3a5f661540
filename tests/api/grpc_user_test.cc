// Whose request it is, over gRPC.

#include "coordinator/http/api_key.h"
#include "tests/api/grpc_services_fixture.h"

namespace somnus {
namespace {

using GrpcUserTest = GrpcServicesTest;

TEST_F(GrpcUserTest, TheKeyNamesTheUser) {
  const v1::GenerateRequest request = Request("abc", 2);
  EXPECT_EQ(Text(request), "ab");
  EXPECT_EQ(engine_->last_request().user, "");
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer one");
  EXPECT_TRUE(Drain(inference_->Generate(&context, request).get()).ok());
  EXPECT_EQ(engine_->last_request().user, UserOfKey("Bearer one"));
}

TEST_F(GrpcUserTest, TheFieldNamesTheUserWhoeverCalls) {
  v1::GenerateRequest request = Request("abc", 2);
  request.set_user("two");
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer one");
  EXPECT_TRUE(Drain(inference_->Generate(&context, request).get()).ok());
  EXPECT_EQ(engine_->last_request().user, UserOfField("two"));
}

}  // namespace
}  // namespace somnus
