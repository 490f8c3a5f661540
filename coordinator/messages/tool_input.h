#pragma once
// The `input` of a tool_use block, which must be a JSON object, from the text that the model wrote. Pure
// functions; thread safe.

#include <string>

#include "absl/strings/string_view.h"

namespace somnus {

// Returns the JSON text of the input: `arguments` where the text is an object. Of a text that the length has
// cut (`is_cut`) the members that are complete are left, which is also what Anthropic's clients make of a
// stream that ends there. A text that is no object becomes {"INVALID_JSON": text}, Anthropic's convention.
std::string ToolInput(absl::string_view arguments, bool is_cut);

}  // namespace somnus
