#pragma once
// Checks of API keys, and who shows one.

#include <string>

#include "absl/strings/string_view.h"

namespace somnus {

// Takes a time that depends on the length of `a` alone.
bool EqualInConstantTime(absl::string_view a, absl::string_view b);

// Whether `authorization` is "Bearer <key>", compared in constant time. True when `key` is empty: none is
// required.
bool BearerMatches(absl::string_view authorization, absl::string_view key);

// The names of users among whom service is shared: of a request's field "user", and where that is not given,
// of whoever shows `authorization`. They are short, whatever a client sends, and the second, which is empty
// where nothing is shown, tells nothing of the key. No field makes the name of a key.
std::string UserOfField(absl::string_view user);
std::string UserOfKey(absl::string_view authorization);

}  // namespace somnus
