#include "coordinator/grpc/calls/error_details.h"

#include <string>

#include "absl/strings/ascii.h"
#include "proto/error_details.pb.h"

namespace somnus {
namespace {

constexpr char kTypePrefix[] = "type.googleapis.com/google.rpc.";

template <typename Detail>
grpc::Status With(const grpc::Status& status, const Detail& detail) {
  rpc::Status whole;
  whole.ParseFromString(status.error_details());  // empty details are an empty message
  whole.set_code(status.error_code());
  whole.set_message(status.error_message());
  google::protobuf::Any* any = whole.add_details();
  any->set_type_url(kTypePrefix + Detail::descriptor()->name());
  any->set_value(detail.SerializeAsString());
  return {status.error_code(), status.error_message(), whole.SerializeAsString()};
}

}  // namespace

grpc::Status WithRetry(const grpc::Status& status, absl::Duration delay) {
  rpc::RetryInfo info;
  info.mutable_retry_delay()->set_seconds(absl::IDivDuration(delay, absl::Seconds(1), &delay));
  info.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(delay)));
  return With(status, info);
}

grpc::Status WithReason(const grpc::Status& status, EngineState state) {
  rpc::ErrorInfo info;
  info.set_reason(absl::AsciiStrToUpper(EngineStateName(state)));
  info.set_domain("somnus");
  return With(status, info);
}

grpc::Status WithField(const grpc::Status& status, absl::string_view field, absl::string_view description) {
  rpc::BadRequest bad;
  rpc::BadRequest::FieldViolation* violation = bad.add_field_violations();
  violation->set_field(std::string(field));
  violation->set_description(std::string(description));
  return With(status, bad);
}

}  // namespace somnus
