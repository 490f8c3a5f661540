#include "proto/status.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_message.h"
#include "proto/error_details.pb.h"

namespace somnus {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.raw_code());
  const std::string message(status.message());
  rpc::Status details;
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    if (!absl::StartsWith(url, kPayloadPrefix)) return;
    google::protobuf::Any* detail = details.add_details();
    detail->set_type_url(std::string(url));
    detail->set_value(std::string(payload));
  });
  if (details.details().empty()) return grpc::Status(code, message);
  details.set_code(code);
  details.set_message(message);
  return grpc::Status(code, message, details.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& wire) {
  if (wire.ok()) return absl::OkStatus();
  absl::Status status(static_cast<absl::StatusCode>(wire.error_code()), wire.error_message());
  rpc::Status details;
  if (!details.ParseFromString(wire.error_details())) return status;
  for (const google::protobuf::Any& detail : details.details()) {
    if (absl::StartsWith(detail.type_url(), kPayloadPrefix))
      status.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return status;
}

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  return WithMessage(status, absl::StrCat(context, ": ", status.message()));
}

}  // namespace somnus
