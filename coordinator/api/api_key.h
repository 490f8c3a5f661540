#pragma once
// Checks of API keys.

#include "absl/strings/string_view.h"

namespace somnus {

bool EqualInConstantTime(absl::string_view a, absl::string_view b);

// "Bearer <key>", compared in constant time; true when no key is set.
bool BearerMatches(absl::string_view authorization, absl::string_view key);

}  // namespace somnus
