#pragma once
// Checks of API keys.

#include "absl/strings/string_view.h"

namespace somnus {

// Takes a time that depends on the length of `a` alone.
bool EqualInConstantTime(absl::string_view a, absl::string_view b);

// Whether `authorization` is "Bearer <key>", compared in constant time. True when `key` is empty: none is
// required.
bool BearerMatches(absl::string_view authorization, absl::string_view key);

}  // namespace somnus
