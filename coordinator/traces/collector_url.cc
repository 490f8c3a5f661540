#include "coordinator/traces/collector_url.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

constexpr absl::string_view kScheme = "http://";

absl::Status Wrong(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not http://host[:port][/path]"));
}

}  // namespace

std::string CollectorUrl::authority() const {
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<CollectorUrl> ParseCollectorUrl(absl::string_view text) {
  if (absl::StartsWithIgnoreCase(text, "https://")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text,
        "': spans go by plain HTTP alone; a collector beside this server can pass them on by TLS"));
  }
  // A space or a line break would end the path, and begin a header.
  const bool is_graphic =
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_isgraph(c); });
  if (!is_graphic || !absl::StartsWithIgnoreCase(text, kScheme)) return Wrong(text);
  const absl::string_view rest = text.substr(kScheme.size());
  const size_t end = std::min(rest.find_first_of("/?#"), rest.size());
  absl::string_view authority = rest.substr(0, end);
  CollectorUrl url;
  if (end < rest.size() && rest[end] == '/') url.path = std::string(rest.substr(end));
  const size_t bracket = authority.find(']');
  const size_t colon = authority.rfind(':');
  const bool has_port =
      colon != absl::string_view::npos && (bracket == absl::string_view::npos || colon > bracket);
  if (has_port) {
    if (!absl::SimpleAtoi(authority.substr(colon + 1), &url.port) || url.port < 1 || url.port > 65535)
      return Wrong(text);
    authority = authority.substr(0, colon);
  }
  if (absl::StartsWith(authority, "[") && absl::EndsWith(authority, "]"))
    authority = authority.substr(1, authority.size() - 2);
  url.host = std::string(authority);
  const bool is_bare =
      url.host.find_first_of("@[]") == std::string::npos && url.path.find('#') == std::string::npos;
  if (url.host.empty() || !is_bare || (end < rest.size() && rest[end] != '/')) return Wrong(text);
  return url;
}

}  // namespace somnus
