#pragma once
// The report of a sleep or a wake-up, for scripts.

#include <google/protobuf/message.h>

#include <string>

#include "absl/status/statusor.h"

namespace somnus::cli {

// `response`, a SleepResponse or a WakeUpResponse, with the fields' names of proto/control.proto. Numbers of
// 64 bits are numbers, where protobuf's own JSON has strings; fields that are not set are there.
absl::StatusOr<std::string> TransitionJson(const google::protobuf::Message& response);

}  // namespace somnus::cli
