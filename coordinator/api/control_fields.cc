#include "coordinator/api/control_fields.h"

#include <google/protobuf/unknown_field_set.h>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

constexpr size_t kMaxRequestBytes = 64 << 10;

}  // namespace

grpc::Status CheckFields(const google::protobuf::Message& request) {
  if (request.ByteSizeLong() > kMaxRequestBytes) {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED,
            absl::StrCat("a ", request.GetDescriptor()->name(), " has at most ", kMaxRequestBytes, " bytes")};
  }
  return CheckKnownFields(request);
}

grpc::Status CheckKnownFields(const google::protobuf::Message& request) {
  const google::protobuf::UnknownFieldSet& unknown = request.GetReflection()->GetUnknownFields(request);
  if (unknown.empty()) return grpc::Status::OK;
  return {grpc::StatusCode::INVALID_ARGUMENT,
          absl::StrCat("field ", unknown.field(0).number(), " of ", request.GetDescriptor()->name(),
                       " is not known here")};
}

std::optional<SleepMode> FromProto(v1::SleepMode mode) {
  switch (mode) {
    case v1::SLEEP_MODE_UNSPECIFIED:
    case v1::SLEEP_MODE_KEEP:
      return SleepMode::kKeep;
    case v1::SLEEP_MODE_WAIT:
      return SleepMode::kWait;
    case v1::SLEEP_MODE_ABORT:
      return SleepMode::kAbort;
    default:
      return std::nullopt;
  }
}

}  // namespace somnus
