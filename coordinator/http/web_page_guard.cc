#include "coordinator/http/web_page_guard.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/http/shown_text.h"

namespace somnus {
namespace {

// Zones without an owner on the Internet: RFC 6761, 6762, 8375, ICANN's .internal, and Kubernetes' names.
constexpr absl::string_view kPrivateZones[] = {".localhost", ".local", ".internal",
                                               ".home.arpa", ".svc",   ".cluster.local"};

bool IsAddress(const std::string& name) {
  std::array<char, sizeof(in6_addr)> address;
  return ::inet_pton(AF_INET, name.c_str(), address.data()) == 1 ||
         ::inet_pton(AF_INET6, name.c_str(), address.data()) == 1;
}

// Whether the origin or the address of a page is of this host. "null" is the origin of sandboxed pages and
// files.
bool IsOf(absl::string_view host, absl::string_view url) {
  const size_t scheme = url.find("://");
  if (scheme == absl::string_view::npos || host.empty()) return false;
  url.remove_prefix(scheme + 3);
  return absl::EqualsIgnoreCase(url.substr(0, url.find_first_of("/?#")), host);
}

ApiError Refusal(absl::string_view header, absl::string_view value, const char* way_out) {
  return {403,
          absl::StrCat("This may come from a web page (", header, ": ", ShownText(value),
                       "), and operators' routes, which have no key, take no such requests: ", way_out),
          ""};
}

}  // namespace

std::string HostName(absl::string_view authority) {
  if (absl::ConsumePrefix(&authority, "[")) {
    authority = authority.substr(0, authority.find(']'));
    authority = authority.substr(0, authority.find('%'));  // the zone id of a link-local address
  } else if (std::count(authority.begin(), authority.end(), ':') == 1) {
    authority = authority.substr(0, authority.find(':'));
  }
  absl::ConsumeSuffix(&authority, ".");
  return absl::AsciiStrToLower(authority);
}

bool WebPageGuard::IsKnownHost(absl::string_view authority) const {
  const std::string name = HostName(authority);
  if (name.find('.') == std::string::npos || IsAddress(name)) return true;
  if (std::any_of(std::begin(kPrivateZones), std::end(kPrivateZones),
                  [&](absl::string_view zone) { return absl::EndsWith(name, zone); }))
    return true;
  return std::any_of(allowed_hosts_.begin(), allowed_hosts_.end(),
                     [&](const std::string& allowed) { return allowed == "*" || HostName(allowed) == name; });
}

std::optional<ApiError> WebPageGuard::Check(const PageMarks& marks) const {
  const char* key = "--admin-api-key gives it one.";
  const absl::string_view site = marks.fetch_site;
  if (!site.empty() && !absl::EqualsIgnoreCase(site, "same-origin") && !absl::EqualsIgnoreCase(site, "none"))
    return Refusal("Sec-Fetch-Site", site, key);
  if (!marks.origin.empty() && !IsOf(marks.host, marks.origin)) return Refusal("Origin", marks.origin, key);
  const bool only_referer = site.empty() && marks.origin.empty() && !marks.referer.empty();
  if (only_referer && !IsOf(marks.host, marks.referer)) return Refusal("Referer", marks.referer, key);
  if (!IsKnownHost(marks.host))
    return Refusal("Host", marks.host, "--admin-allowed-hosts lists names, --admin-api-key gives it a key.");
  return std::nullopt;
}

}  // namespace somnus
