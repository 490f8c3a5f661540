#include "allocator/memory_shortage.h"

#include <algorithm>
#include <optional>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace somnus {
namespace {

constexpr char kUrl[] = "somnus.allocator/MemoryShortage";
constexpr size_t kMaxShortages = 64;  // a rank has a handful of tags
constexpr size_t kMaxTagBytes = 256;
constexpr MemoryKind kKinds[] = {MemoryKind::kDevice, MemoryKind::kHost, MemoryKind::kDisk};

std::optional<MemoryKind> ParseKind(absl::string_view name) {
  for (const MemoryKind kind : kKinds) {
    if (name == MemoryKindName(kind)) return kind;
  }
  return std::nullopt;
}

std::optional<MemoryShortage> ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, absl::MaxSplits(' ', 3));
  if (words.size() != 4 || words[3].size() > kMaxTagBytes) return std::nullopt;
  MemoryShortage shortage;
  const std::optional<MemoryKind> kind = ParseKind(words[0]);
  const bool are_numbers = absl::SimpleAtoi(words[1], &shortage.needed_bytes) &&
                           absl::SimpleAtoi(words[2], &shortage.missing_bytes);
  if (!kind.has_value() || !are_numbers) return std::nullopt;
  if (shortage.missing_bytes < 0 || shortage.missing_bytes > shortage.needed_bytes) return std::nullopt;
  shortage.memory = *kind;
  shortage.tag = std::string(words[3]);
  return shortage;
}

}  // namespace

const char* MemoryKindName(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kDevice:
      return "device";
    case MemoryKind::kHost:
      return "host";
    case MemoryKind::kDisk:
      return "disk";
  }
  return "";
}

int64_t MissingBytes(int64_t needed_bytes, int64_t available_bytes) {
  return needed_bytes - std::clamp<int64_t>(available_bytes, 0, needed_bytes);
}

int64_t MissingOfRefused(int64_t needed_bytes, int64_t available_bytes) {
  return available_bytes >= needed_bytes ? needed_bytes : MissingBytes(needed_bytes, available_bytes);
}

int64_t MissingAfterRefusal(int64_t needed_bytes, const absl::Status& refusal) {
  const std::vector<MemoryShortage> known = ShortagesOf(refusal);
  if (known.empty()) return needed_bytes;
  const MemoryShortage& part = known.front();
  const int64_t missing = MissingBytes(needed_bytes, part.needed_bytes - part.missing_bytes);
  // A part larger than the whole was rounded up.
  return std::min(needed_bytes, std::max(missing, part.missing_bytes));
}

std::string EncodeShortages(const std::vector<MemoryShortage>& shortages) {
  std::string text;
  for (const MemoryShortage& one : shortages) {
    absl::StrAppend(&text, MemoryKindName(one.memory), " ", one.needed_bytes, " ", one.missing_bytes, " ",
                    one.tag, "\n");
  }
  return text;
}

std::vector<MemoryShortage> DecodeShortages(absl::string_view text) {
  std::vector<MemoryShortage> shortages;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (end == absl::string_view::npos || shortages.size() == kMaxShortages) return {};
    std::optional<MemoryShortage> shortage = ParseLine(text.substr(0, end));
    if (!shortage.has_value()) return {};
    shortages.push_back(*std::move(shortage));
    text.remove_prefix(end + 1);
  }
  return shortages;
}

absl::Status WithShortages(absl::Status status, const std::vector<MemoryShortage>& shortages) {
  status.SetPayload(kUrl, absl::Cord(EncodeShortages(shortages)));
  return status;
}

std::vector<MemoryShortage> ShortagesOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kUrl);
  return payload.has_value() ? DecodeShortages(std::string(*payload)) : std::vector<MemoryShortage>();
}

absl::Status OfTag(const absl::Status& status, absl::string_view tag) {
  std::vector<MemoryShortage> shortages = ShortagesOf(status);
  if (shortages.empty()) return status;
  for (MemoryShortage& shortage : shortages) {
    if (shortage.tag.empty()) shortage.tag = std::string(tag);
  }
  return WithShortages(status, shortages);
}

}  // namespace somnus
