#pragma once
// The address of a collector. A value.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace somnus {

struct CollectorUrl {
  std::string host;  // a name or an address; of IPv6 without brackets
  int port = 80;
  std::string path = "/";  // with the query
  // As a Host header wants it.
  std::string authority() const;
};

// Reads http://host[:port][/path]. InvalidArgument says what is wrong, of https that spans go by plain HTTP.
absl::StatusOr<CollectorUrl> ParseCollectorUrl(absl::string_view text);

}  // namespace somnus
