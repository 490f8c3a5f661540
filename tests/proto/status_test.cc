#include "proto/status.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/missing_memory.h"

namespace somnus {
namespace {

TEST(StatusTest, EveryCodeSurvivesTheWireAndBack) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status sent(static_cast<absl::StatusCode>(code), "field 'n': too large");
    const grpc::Status wire = ToGrpcStatus(sent);
    EXPECT_EQ(static_cast<int>(wire.error_code()), code);
    EXPECT_EQ(FromGrpcStatus(wire), sent);
  }
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

TEST(StatusTest, AnnotateKeepsCodeAndOk) {
  const absl::Status annotated = Annotate(absl::NotFoundError("no such tensor"), "rank 1");
  EXPECT_EQ(annotated, absl::NotFoundError("rank 1: no such tensor"));
  EXPECT_TRUE(Annotate(absl::OkStatus(), "rank 1").ok());
}

TEST(StatusTest, PayloadsOfOurProtocolTravelAndOthersDoNot) {
  const std::string url = std::string(kPayloadPrefix) + "MissingMemory";
  absl::Status sent = absl::ResourceExhaustedError("no memory");
  sent.SetPayload(url, absl::Cord(std::string("a\0b", 3)));
  absl::Status local = sent;
  local.SetPayload("somnus.allocator", absl::Cord("x"));
  const absl::Status received = FromGrpcStatus(ToGrpcStatus(Annotate(local, "rank 1")));
  absl::Status expected = absl::ResourceExhaustedError("rank 1: no memory");
  expected.SetPayload(url, absl::Cord(std::string("a\0b", 3)));
  EXPECT_EQ(received, expected);
  EXPECT_EQ(received.GetPayload(url), absl::Cord(std::string("a\0b", 3)));
  EXPECT_FALSE(received.GetPayload("somnus.allocator").has_value());
}

TEST(StatusTest, DetailsThatCannotBeReadAreNone) {
  const grpc::Status wire(grpc::StatusCode::INTERNAL, "broken", "\xff\xff");
  EXPECT_EQ(FromGrpcStatus(wire), absl::InternalError("broken"));
}

TEST(MissingMemoryTest, AStatusCarriesIt) {
  v1::MissingMemory missing;
  v1::MissingMemory::Shortage* shortage = missing.add_shortages();
  shortage->set_rank(3);
  shortage->set_tag("kv_cache");
  shortage->set_missing_bytes(int64_t{5} << 40);
  const absl::Status status = WithMissing(absl::ResourceExhaustedError("no memory"), missing);
  EXPECT_EQ(MissingOf(FromGrpcStatus(ToGrpcStatus(status))).SerializeAsString(), missing.SerializeAsString());
  EXPECT_EQ(WithMissing(status, {}), absl::ResourceExhaustedError("no memory"));
  EXPECT_TRUE(MissingOf(absl::ResourceExhaustedError("no memory")).shortages().empty());
  absl::Status damaged = status;
  damaged.SetPayload(std::string(kPayloadPrefix) + "MissingMemory", absl::Cord("\xff"));
  EXPECT_TRUE(MissingOf(damaged).shortages().empty());
}

absl::StatusOr<int> Parse(const std::string& text) {
  if (text.empty()) return absl::InvalidArgumentError("text: empty");
  return static_cast<int>(text.size());
}

absl::StatusOr<int> SumOfSizes(const std::string& a, const std::string& b) {
  ASSIGN_OR_RETURN(const int size_a, Parse(a));
  ASSIGN_OR_RETURN(const int size_b, Parse(b));
  return size_a + size_b;
}

absl::Status Both(const absl::Status& a, const absl::Status& b, int* reached) {
  RETURN_IF_ERROR(a);
  *reached = 1;
  RETURN_IF_ERROR(b);
  *reached = 2;
  return absl::OkStatus();
}

TEST(StatusTest, MacrosReturnTheFirstErrorAndGoOnOtherwise) {
  EXPECT_EQ(*SumOfSizes("ab", "c"), 3);
  EXPECT_EQ(SumOfSizes("ab", "").status(), absl::InvalidArgumentError("text: empty"));
  int reached = 0;
  EXPECT_EQ(Both(absl::OkStatus(), absl::InternalError("x"), &reached), absl::InternalError("x"));
  EXPECT_EQ(reached, 1);
  EXPECT_TRUE(Both(absl::OkStatus(), absl::OkStatus(), &reached).ok());
  EXPECT_EQ(reached, 2);
}

}  // namespace
}  // namespace somnus
