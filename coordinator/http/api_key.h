#pragma once
// Checks of API keys, and names for the users that show a key.

#include <string>

#include "absl/strings/string_view.h"

namespace somnus {

// Takes a time that depends on the length of `a` alone.
bool EqualInConstantTime(absl::string_view a, absl::string_view b);

// Whether `authorization` is "Bearer <key>", compared in constant time. True when `key` is empty: none is
// required.
bool BearerMatches(absl::string_view authorization, absl::string_view key);

// Returns the Authorization header that shows `key`; empty for no key.
std::string BearerOf(absl::string_view key);
// Returns "alice at 127.0.0.1:4711", for messages about a client; `key_name`: the name of the key that the
// client has shown, or empty, which leaves the address.
std::string NamedClient(absl::string_view key_name, absl::string_view address);

// The names of users among whom service is shared: of a request's field "user", or, where the field is not
// given, of the user that shows `authorization`. A name is short for any text that a client sends. The name
// of a key, which is empty where no key is shown, tells nothing of the key. No field makes the name of a key.
std::string UserOfField(absl::string_view user);
std::string UserOfKey(absl::string_view authorization);
// Returns a user's name for people: a field's own text, unless the text could be taken for another name.
std::string ShownUser(absl::string_view name);

}  // namespace somnus
