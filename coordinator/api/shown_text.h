#pragma once
// What a client sent, for a message that goes back to this client. Pure.

#include <string>

#include "absl/strings/string_view.h"

namespace somnus {

// Returns at most about 200 bytes of `text`, all printable ASCII: other bytes become "%XX".
std::string ShownText(absl::string_view text);

}  // namespace somnus
