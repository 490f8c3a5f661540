#pragma once
// Helpers for checks of a step message.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/repeated_field.h"

namespace somnus {

// InvalidArgument about a fault in a step message.
template <typename... Args>
absl::Status InvalidStep(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat("step message: ", args...));
}

inline absl::Status CheckTokenIds(const google::protobuf::RepeatedField<int32_t>& ids, int32_t vocab_size) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size)
      return InvalidStep("token id ", id, " is outside the vocabulary of ", vocab_size);
  }
  return absl::OkStatus();
}

}  // namespace somnus
