#pragma once
// The query of a request's target. Thread safe.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace somnus {

std::string PercentDecode(absl::string_view text);

// Values of `name` in a query string, decoded, in order.
std::vector<std::string> QueryValues(absl::string_view query, absl::string_view name);

// The names in a query string, decoded, in order.
std::vector<std::string> QueryNames(absl::string_view query);

}  // namespace somnus
