#include "proto/status.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/status/statusor.h"

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
