#pragma once
// A text that a client sent, for a message that goes back to this client. Pure.

#include <string>

#include "absl/strings/string_view.h"

namespace somnus {

// Returns at most about 200 bytes of `text`, as printable ASCII: an unprintable byte becomes "%XX".
std::string ShownText(absl::string_view text);

}  // namespace somnus
