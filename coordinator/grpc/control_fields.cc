#include "coordinator/grpc/control_fields.h"

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

v1::EngineState ToProto(EngineState state) {
  switch (state) {
    case EngineState::kLoading:
      return v1::ENGINE_STATE_LOADING;
    case EngineState::kAwake:
      return v1::ENGINE_STATE_AWAKE;
    case EngineState::kFallingAsleep:
      return v1::ENGINE_STATE_FALLING_ASLEEP;
    case EngineState::kAsleep:
      return v1::ENGINE_STATE_ASLEEP;
    case EngineState::kWaking:
      return v1::ENGINE_STATE_WAKING;
    case EngineState::kRecovering:
      return v1::ENGINE_STATE_RECOVERING;
    case EngineState::kDraining:
      return v1::ENGINE_STATE_DRAINING;
    case EngineState::kFailed:
      return v1::ENGINE_STATE_FAILED;
    case EngineState::kPausing:
      return v1::ENGINE_STATE_PAUSING;
    case EngineState::kPaused:
      return v1::ENGINE_STATE_PAUSED;
  }
  return v1::ENGINE_STATE_UNSPECIFIED;
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
