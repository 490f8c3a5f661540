#include "coordinator/traces/trace_context.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace somnus {
namespace {

// The places of the fields in version 00, and the length.
constexpr size_t kVersionDigits = 2, kTraceAt = 3, kTraceDigits = 32, kParentAt = 36, kParentDigits = 16,
                 kFlagsAt = 53, kFlagsDigits = 2, kLength = 55;

constexpr size_t kMaxStateBytes = 512, kMaxStateMembers = 32;

bool IsHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f'); });
}

bool IsId(absl::string_view text) {
  return IsHex(text) && text.find_first_not_of('0') != absl::string_view::npos;
}

bool IsOdd(char digit) { return absl::string_view("13579bdf").find(digit) != absl::string_view::npos; }

// A key of lower-case letters, digits and "_-*/@", and a value of printable characters.
bool IsStateMember(absl::string_view member) {
  const size_t equals = member.find('=');
  if (equals == 0 || equals == absl::string_view::npos) return false;
  const absl::string_view key = member.substr(0, equals), value = member.substr(equals + 1);
  return std::all_of(key.begin(), key.end(),
                     [](char c) {
                       return absl::ascii_islower(c) || absl::ascii_isdigit(c) ||
                              absl::StrContains("_-*/@", c);
                     }) &&
         !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
           return absl::ascii_isprint(static_cast<unsigned char>(c)) && c != '=';
         });
}

// Not 0, which stands for no id.
uint64_t NewNumber() {
  thread_local std::mt19937_64 random{[] {
    std::random_device device;
    return (uint64_t{device()} << 32) | device();
  }()};
  return std::uniform_int_distribution<uint64_t>(1)(random);
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(absl::string_view text) {
  if (text.size() < kLength) return std::nullopt;
  const absl::string_view version = text.substr(0, kVersionDigits);
  if (!IsHex(version) || version == "ff") return std::nullopt;
  const bool goes_on = text.size() > kLength;
  if (goes_on && (version == "00" || text[kLength] != '-')) return std::nullopt;
  if (text[kTraceAt - 1] != '-' || text[kParentAt - 1] != '-' || text[kFlagsAt - 1] != '-')
    return std::nullopt;
  const absl::string_view trace = text.substr(kTraceAt, kTraceDigits);
  const absl::string_view parent = text.substr(kParentAt, kParentDigits);
  const absl::string_view flags = text.substr(kFlagsAt, kFlagsDigits);
  if (!IsId(trace) || !IsId(parent) || !IsHex(flags)) return std::nullopt;
  return TraceContext{std::string(trace), std::string(parent), IsOdd(flags[1])};
}

std::string ParseTracestate(absl::string_view text) {
  if (text.size() > kMaxStateBytes) return "";
  std::vector<absl::string_view> members;
  for (absl::string_view member : absl::StrSplit(text, ',')) {
    member = absl::StripAsciiWhitespace(member);
    if (member.empty()) continue;
    if (!IsStateMember(member)) return "";
    members.push_back(member);
  }
  return members.size() <= kMaxStateMembers ? absl::StrJoin(members, ",") : "";
}

std::string NewTraceId() {
  return absl::StrCat(absl::Hex(NewNumber(), absl::kZeroPad16), absl::Hex(NewNumber(), absl::kZeroPad16));
}

std::string NewSpanId() { return absl::StrCat(absl::Hex(NewNumber(), absl::kZeroPad16)); }

}  // namespace somnus
