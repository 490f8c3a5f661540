#include "coordinator/http/api_keys.h"

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/small_file.h"
#include "coordinator/http/api_key.h"

namespace somnus {
namespace {

constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMaxFileBytes = 1 << 20;

absl::Status Wrong(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, what));
}

bool IsWord(absl::string_view text) { return !text.empty() && absl::c_all_of(text, absl::ascii_isgraph); }

}  // namespace

absl::Status ApiKeys::Add(absl::string_view name, absl::string_view key) {
  if (key.empty()) return absl::InvalidArgumentError("has an empty key");
  if (keys_.size() >= kMaxKeys)
    return absl::InvalidArgumentError(absl::StrCat("is one key too many: there may be ", kMaxKeys));
  if (!name.empty() && absl::c_any_of(keys_, [&](const Key& other) { return other.name == name; }))
    return absl::InvalidArgumentError("has the name of an earlier key");
  keys_.push_back({std::string(name), std::string(key)});
  return absl::OkStatus();
}

absl::Status ApiKeys::AddFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadPrivateFile(path, kMaxFileBytes);
  if (!text.ok()) return text.status();
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    ++line_number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    const bool is_named = IsWord(parts.first) && parts.first.size() <= kMaxNameBytes;
    const absl::Status added =
        is_named ? Add(parts.first, parts.second)
                 : absl::InvalidArgumentError(absl::StrCat(
                       "is not name:key, with a name of one word and at most ", kMaxNameBytes, " bytes"));
    if (!added.ok()) return Wrong(path, absl::StrCat(": line ", line_number, " ", added.message()));
  }
  return keys_.empty() ? Wrong(path, " has no key") : absl::OkStatus();
}

const ApiKeys::Key* ApiKeys::Find(absl::string_view authorization) const {
  const Key* found = nullptr;
  for (const Key& key : keys_) {
    if (BearerMatches(authorization, key.key)) found = &key;
  }
  return found;
}

bool ApiKeys::Opens(absl::string_view authorization) const {
  return keys_.empty() || Find(authorization) != nullptr;
}

std::string ApiKeys::NameOf(absl::string_view authorization) const {
  const Key* const found = Find(authorization);
  return found == nullptr ? "" : found->name;
}

}  // namespace somnus
