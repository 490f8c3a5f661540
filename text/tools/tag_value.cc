#include "text/tools/tag_value.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "text/tools/json_text.h"

namespace somnus {
namespace {

constexpr size_t kMaxSpace = 64;  // between the end tag and what follows

}  // namespace

std::vector<ValueEnd> ValueEndsOf(const ToolFormat& format) {
  const TagSyntax& tags = format.tags;
  const absl::string_view call_end = format.call_end.front();
  std::vector<absl::string_view> after_value = {tags.key_begin, call_end};
  if (!format.section_end.empty()) after_value.push_back(format.section_end);
  std::vector<ValueEnd> ends = {{std::string(tags.value_end), after_value},
                                {absl::StrCat("\n", tags.key_begin), {}, true}};
  if (!format.section_end.empty()) {
    ends.push_back({std::string(call_end), {format.section_end, format.call_begin.front()}, true});
  }
  if (!tags.wraps_lines) return ends;
  for (size_t i = 0, n = ends.size(); i < n; ++i) {
    if (ends[i].text[0] == '\n') continue;
    ValueEnd on_its_line = ends[i];
    on_its_line.text = absl::StrCat("\n", ends[i].text);
    ends.push_back(std::move(on_its_line));
  }
  return ends;
}

TagValue::TagValue(const std::vector<ValueEnd>* ends, bool drops_line_break, ValueTypes types,
                   const TurnLimits& limits)
    : ends_(ends),
      drops_line_break_(drops_line_break),
      types_(types),
      is_string_(types == 0 || types == kStringType),
      limits_(limits) {}

TagValue::Match TagValue::MatchEnd(absl::string_view text, const ValueEnd& end) {
  if (text.size() < end.text.size()) return absl::StartsWith(end.text, text) ? Match::kMaybe : Match::kNo;
  if (!absl::StartsWith(text, end.text)) return Match::kNo;
  if (end.followers.empty()) return Match::kYes;
  absl::string_view rest = text.substr(end.text.size());
  size_t spaces = 0;
  while (spaces < rest.size() && IsJsonSpace(rest[spaces])) ++spaces;
  if (spaces > kMaxSpace) return Match::kNo;
  rest.remove_prefix(spaces);
  Match match = Match::kNo;
  for (const absl::string_view follower : end.followers) {
    if (absl::StartsWith(rest, follower)) return Match::kYes;
    if (absl::StartsWith(follower, rest)) match = Match::kMaybe;
  }
  return match;
}

ReadState TagValue::Read(char c, std::string* json) {
  held_ += c;
  while (!held_.empty()) {
    bool may_end = false;
    for (const ValueEnd& end : *ends_) {
      const Match match = MatchEnd(held_, end);
      may_end = may_end || match == Match::kMaybe;
      if (match != Match::kYes) continue;
      rest_ = held_.substr(end.is_outside ? 0 : end.text.size());
      held_.clear();
      End(json);
      return ReadState::kDone;
    }
    if (may_end) return ReadState::kMore;
    Append(held_.front(), json);
    held_.erase(0, 1);
  }
  return bytes_ > limits_.max_argument_bytes ? ReadState::kStop : ReadState::kMore;
}

void TagValue::Append(char c, std::string* json) {
  if (bytes_++ == 0 && drops_line_break_ && c == '\n') return;
  if (is_string_) {
    Begin(json);
    AppendEscaped(c, json);
  } else {
    buffer_ += c;
  }
}

void TagValue::Begin(std::string* json) {
  if (!std::exchange(begun_, true)) *json += '"';
}

void TagValue::End(std::string* json) {
  if (is_string_) {
    Begin(json);
    *json += '"';
  } else {
    *json += JsonOfText(buffer_, types_, limits_.max_depth);
  }
}

void TagValue::Finish(bool is_cut, std::string* json) {
  if (!is_cut) return End(json);
  if (is_string_) Begin(json);
}

}  // namespace somnus
