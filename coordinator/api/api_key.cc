#include "coordinator/api/api_key.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace somnus {

bool EqualInConstantTime(absl::string_view a, absl::string_view b) {
  volatile unsigned char difference = a.size() == b.size() ? 0 : 1;
  // Only the length of `a`, which the client chose, decides how long this takes.
  for (size_t i = 0; i < a.size(); ++i) {
    const unsigned char other = b.empty() ? 0 : static_cast<unsigned char>(b[i % b.size()]);
    difference = difference | (static_cast<unsigned char>(a[i]) ^ other);
  }
  return difference == 0;
}

bool BearerMatches(absl::string_view authorization, absl::string_view key) {
  if (key.empty()) return true;
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(authorization, absl::MaxSplits(' ', 1));
  return absl::EqualsIgnoreCase(parts.first, "Bearer") && EqualInConstantTime(parts.second, key);
}

}  // namespace somnus
