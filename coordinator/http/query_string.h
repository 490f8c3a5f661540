#pragma once
// The query part of a request's target. Pure functions.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace somnus {

// Decodes "%2F". In a query a '+' is a space; in a path a '+' is a plus sign.
std::string DecodePath(absl::string_view text);
std::string DecodeQuery(absl::string_view text);

// Returns the values of `name` in a query string, decoded, in order.
std::vector<std::string> QueryValues(absl::string_view query, absl::string_view name);

// Returns the names in a query string, decoded, in order.
std::vector<std::string> QueryNames(absl::string_view query);

}  // namespace somnus
