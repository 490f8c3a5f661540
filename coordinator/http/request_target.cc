#include "coordinator/http/request_target.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

bool IsUnreserved(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' || c == '_' || c == '~';
}

std::string DecodeUnreserved(absl::string_view path) {
  std::string out;
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] == '%' && i + 2 < path.size() && absl::ascii_isxdigit(path[i + 1]) &&
        absl::ascii_isxdigit(path[i + 2])) {
      const std::string byte = absl::HexStringToBytes(path.substr(i + 1, 2));
      if (IsUnreserved(byte[0])) {
        out += byte;
        i += 2;
        continue;
      }
    }
    out += path[i];
  }
  return out;
}

// Returns where the authority of an absolute form begins; 0: the target is not of the absolute form.
size_t AuthorityStart(absl::string_view target) {
  for (const absl::string_view scheme : {"http://", "https://"}) {
    if (absl::StartsWithIgnoreCase(target, scheme)) return scheme.size();
  }
  return 0;
}

}  // namespace

RequestTarget ParseTarget(absl::string_view target) {
  RequestTarget parsed;
  if (const size_t start = AuthorityStart(target); start > 0) {
    target.remove_prefix(start);
    const size_t end = std::min(target.find_first_of("/?#"), target.size());
    absl::string_view authority = target.substr(0, end);
    if (const size_t at = authority.rfind('@'); at != absl::string_view::npos)
      authority.remove_prefix(at + 1);
    parsed.authority = std::string(authority);
    target.remove_prefix(end);
    if (target.empty() || target[0] != '/') parsed.path_and_query = "/";
  }
  const size_t query = std::min(target.find('?'), target.size());
  absl::StrAppend(&parsed.path_and_query, DecodeUnreserved(target.substr(0, query)), target.substr(query));
  return parsed;
}

std::string BelowRoot(absl::string_view root, std::string path_and_query) {
  const bool is_below = !root.empty() && absl::StartsWith(path_and_query, root) &&
                        path_and_query.size() > root.size() && path_and_query[root.size()] == '/';
  if (is_below) path_and_query.erase(0, root.size());
  return path_and_query;
}

}  // namespace somnus
