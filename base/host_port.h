#pragma once
// Addresses as text: "host:port" or "[v6]:port".

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace somnus {

struct HostPort {
  std::string host;  // without brackets
  std::string port;
};

// Empty when there is no host or no port. Neither is checked further.
std::optional<HostPort> SplitHostPort(absl::string_view address);

std::string JoinHostPort(absl::string_view host, int port);

}  // namespace somnus
