#pragma once
// Keeps web pages away from operators' listener where the listener has no key: a page of any site that an
// operator visits could send a plain POST to the listener, or reach the listener under a name of the site
// that resolves to this machine (DNS rebinding). Pure; immutable; thread safe.
//
// The guard refuses a request that a browser marks as sent by a foreign origin (Sec-Fetch-Site, Origin, or
// Referer, which alone old browsers send with a form), and a request with a Host that strangers can own.
// Allowed hosts are addresses, "localhost", names without a dot or of zones that the Internet does not have
// (".internal", ".local", ...), the host that the listener was told to bind, the names of this machine, and
// names that a flag lists. Programs send no such marks.

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/http/api_error.h"

namespace somnus {

// The values of a request's headers; "": no such header.
struct PageMarks {
  absl::string_view host, origin, fetch_site, referer;
};

class WebPageGuard {
 public:
  // `allowed_hosts`: names without a port; "*": all.
  explicit WebPageGuard(std::vector<std::string> allowed_hosts) : allowed_hosts_(std::move(allowed_hosts)) {}

  // Returns a 403 with the reason of a refusal.
  std::optional<ApiError> Check(const PageMarks& marks) const;

 private:
  bool IsKnownHost(absl::string_view name) const;

  const std::vector<std::string> allowed_hosts_;
};

// Returns the name or address in a Host header or an authority, without port and brackets, in lower case and
// without a dot at the end.
std::string HostName(absl::string_view authority);

}  // namespace somnus
