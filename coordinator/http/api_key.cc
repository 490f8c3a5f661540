#include "coordinator/http/api_key.h"

#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace somnus {
namespace {

constexpr absl::string_view kOfField = "user:";

}  // namespace

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

std::string BearerOf(absl::string_view key) { return key.empty() ? "" : absl::StrCat("Bearer ", key); }
std::string NamedClient(absl::string_view key_name, absl::string_view address) {
  return key_name.empty() ? std::string(address) : absl::StrCat(key_name, " at ", address);
}

std::string UserOfField(absl::string_view user) {
  constexpr size_t kMaxNameBytes = 64;
  if (user.size() <= kMaxNameBytes) return absl::StrCat(kOfField, user);
  return absl::StrCat("long user:", absl::Hex(absl::HashOf(user)));
}

std::string UserOfKey(absl::string_view authorization) {
  return authorization.empty() ? "" : absl::StrCat("key:", absl::Hex(absl::HashOf(authorization)));
}

std::string ShownUser(absl::string_view name) {
  absl::string_view text = name;
  const bool is_field = absl::ConsumePrefix(&text, kOfField);
  return std::string(is_field && !absl::StrContains(text, ':') ? text : name);
}

}  // namespace somnus
