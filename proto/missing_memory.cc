#include "proto/missing_memory.h"

#include <string>

#include "absl/strings/cord.h"

namespace somnus {
namespace {

constexpr char kMissingMemoryUrl[] = "type.googleapis.com/somnus.v1.MissingMemory";

}  // namespace

absl::Status WithMissing(absl::Status status, const v1::MissingMemory& missing) {
  if (missing.shortages().empty()) {
    status.ErasePayload(kMissingMemoryUrl);
  } else {
    status.SetPayload(kMissingMemoryUrl, absl::Cord(missing.SerializeAsString()));
  }
  return status;
}

v1::MissingMemory MissingOf(const absl::Status& status) {
  v1::MissingMemory missing;
  const auto payload = status.GetPayload(kMissingMemoryUrl);
  if (!payload.has_value() || !missing.ParseFromString(std::string(*payload))) return {};
  return missing;
}

}  // namespace somnus
