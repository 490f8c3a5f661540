#pragma once
// Keeps web pages away from operators' listener where it has no key: a page of any site that an operator
// visits could send a plain POST to it, or reach it under a name of its own that leads here (DNS rebinding).
// Pure; immutable; thread safe.
//
// Refused is a request that a browser marks as another origin's (Origin, Sec-Fetch-Site), and one whose Host
// is a name that strangers can own. Fine are addresses, "localhost", names without a dot or of zones that the
// Internet does not have (".internal", ".local", ...), the host that the listener was told to bind, the names
// of this machine, and names that a flag lists. Programs send none of the browser's marks.

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/api/api_error.h"

namespace somnus {

class WebPageGuard {
 public:
  // `allowed_hosts`: names without a port; "*": all.
  explicit WebPageGuard(std::vector<std::string> allowed_hosts) : allowed_hosts_(std::move(allowed_hosts)) {}

  // The values of a request's headers; "": there is none. Returns a 403 that says why it is refused.
  std::optional<ApiError> Check(absl::string_view host, absl::string_view origin,
                                absl::string_view fetch_site) const;

 private:
  bool IsKnownHost(absl::string_view name) const;

  const std::vector<std::string> allowed_hosts_;
};

// Returns the name or address in a Host header or an authority, without port and brackets, in lower case and
// without a dot at its end.
std::string HostName(absl::string_view authority);

}  // namespace somnus
