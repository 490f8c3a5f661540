#pragma once
// The string formats of JSON Schema as patterns. Pure functions.

#include <string>

#include "absl/strings/string_view.h"

namespace somnus {

// Returns a pattern whose strings are all of the format, or nullptr for a format that is not enforced.
// xgrammar's own patterns for formats are not used, because they take days that do not exist, octets with
// leading zeros and labels of any length. Narrower than the format: years begin at 0001, seconds end at 59, a
// host name has at most 3 labels of up to 63 characters or 12 of up to 20, an email address has neither
// comments nor quotes.
const std::string* FormatPattern(absl::string_view format);

// Whether the format says nothing about a string's characters: formats of numbers, and hints for forms
// (OpenAPI).
bool IsHint(absl::string_view format);

}  // namespace somnus
