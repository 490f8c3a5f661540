#include "text/tools/tag_arguments.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "text/tools/json_text.h"

namespace somnus {
namespace {

constexpr size_t kMaxKey = 1024;

}  // namespace

TagArguments::TagArguments(const ToolFormat& format, const ToolSchemas& schemas, std::string tool,
                           bool is_certain, const TurnLimits& limits)
    : format_(format),
      schemas_(schemas),
      tool_(std::move(tool)),
      limits_(limits),
      ends_(ValueEndsOf(format)),
      started_(is_certain),
      scanner_(limits.max_depth) {}

ReadState TagArguments::Read(char c, std::string* json) {
  switch (at_) {
    case At::kBetween:
      return ReadBetween(c, json);
    case At::kKey:
      return ReadKey(c, json);
    case At::kAttributes:
      return ReadAttributes(c, json);
    case At::kValueBegin:
      return ReadValueBegin(c, json);
    case At::kValue:
      return ReadValue(c, json);
    default:
      return ReadJson(c, json);
  }
}

ReadState TagArguments::ReadBetween(char c, std::string* json) {
  if (mark_.empty() && IsJsonSpace(c)) return ReadState::kMore;
  if (mark_.empty() && c == '{' && started_ && num_parameters_ == 0 && !has_json_) {
    has_json_ = true;
    at_ = At::kJson;
    return ReadJson(c, json);
  }
  mark_ += c;
  const absl::string_view key_begin = has_json_ ? "" : format_.tags.key_begin;
  const absl::string_view call_end = format_.call_end.front();
  if (mark_ == key_begin) {
    started_ = true;
    mark_.clear();
    key_.clear();
    at_ = At::kKey;
    return ReadState::kMore;
  }
  if (mark_ == call_end) {
    started_ = true;
    mark_.clear();
    Close(json);
    return ReadState::kDone;
  }
  if (absl::StartsWith(key_begin, mark_) || absl::StartsWith(call_end, mark_)) return ReadState::kMore;
  mark_.pop_back();
  return Stop(json);
}

ReadState TagArguments::ReadKey(char c, std::string* json) {
  key_ += c;
  if (key_.size() > kMaxKey) {
    mark_ = absl::StrCat(format_.tags.key_begin, key_.substr(0, kMaxKey));
    return Stop(json);
  }
  if (!absl::EndsWith(key_, format_.tags.key_end)) return ReadState::kMore;
  key_.resize(key_.size() - format_.tags.key_end.size());
  attributes_.clear();
  if (format_.tags.has_attributes) {
    at_ = At::kAttributes;
  } else {
    EndKey(json);
  }
  return ReadState::kMore;
}

ReadState TagArguments::ReadAttributes(char c, std::string* json) {
  attributes_ += c;
  if (attributes_.size() > kMaxKey) return Stop(json);
  if (c == '>') EndKey(json);
  return ReadState::kMore;
}

void TagArguments::EndKey(std::string* json) {
  key_ = std::string(absl::StripAsciiWhitespace(key_));
  absl::StrAppend(json, num_parameters_++ == 0 ? "{" : ", ", Quoted(key_), ": ");
  at_ = At::kValueBegin;
  if (format_.tags.value_begin.empty()) BeginValue();
}

ReadState TagArguments::ReadValueBegin(char c, std::string* json) {
  if (mark_.empty() && IsJsonSpace(c)) return ReadState::kMore;
  mark_ += c;
  if (!absl::StartsWith(format_.tags.value_begin, mark_)) {
    mark_.pop_back();
    *json += "null";
    return Stop(json);
  }
  if (mark_ == format_.tags.value_begin) BeginValue();
  return ReadState::kMore;
}

void TagArguments::BeginValue() {
  ValueTypes types = schemas_.TypesOf(tool_, key_);
  if (const TagSyntax& tags = format_.tags; tags.has_attributes) {
    if (absl::StrContains(attributes_, tags.other_mark)) types = ~kStringType;
    if (absl::StrContains(attributes_, tags.string_mark)) types = kStringType;
  }
  mark_.clear();
  value_ = std::make_unique<TagValue>(&ends_, format_.tags.wraps_lines, types, limits_);
  at_ = At::kValue;
}

ReadState TagArguments::ReadValue(char c, std::string* json) {
  const ReadState state = value_->Read(c, json);
  if (state == ReadState::kStop) {
    value_->Finish(/*is_cut=*/false, json);
    return Stop(json);
  }
  if (state == ReadState::kMore) return state;
  at_ = At::kBetween;
  // The text that was read ahead is white space and a tag, perhaps with the tag of the section's end behind.
  const std::string rest = value_->rest();
  for (size_t i = 0; i < rest.size(); ++i) {
    const ReadState read = Read(rest[i], json);
    if (read == ReadState::kDone) unread_ = rest.substr(i + 1);
    if (read == ReadState::kStop) unread_ += rest.substr(i, rest.size() - 1 - i);
    if (read != ReadState::kMore) return read;
  }
  return ReadState::kMore;
}

ReadState TagArguments::ReadJson(char c, std::string* json) {
  switch (scanner_.Read(c, json)) {
    case JsonScanner::Result::kMore:
      return ReadState::kMore;
    case JsonScanner::Result::kDone:
      at_ = At::kBetween;
      return ReadState::kMore;
    default:
      *json += scanner_.Missing();
      return ReadState::kStop;
  }
}

void TagArguments::Close(std::string* json) {
  if (!has_json_) *json += num_parameters_ == 0 ? "{}" : "}";
}

ReadState TagArguments::Stop(std::string* json) {
  if (started_) Close(json);
  unread_ = mark_;
  return ReadState::kStop;
}

bool TagArguments::Finish(bool is_cut, std::string* json) {
  if (at_ == At::kJson) {
    const std::string missing = is_cut ? "" : scanner_.Missing();
    *json += missing;
    return !missing.empty();
  }
  if (at_ == At::kValue) value_->Finish(is_cut, json);
  if (at_ == At::kValueBegin && !is_cut) *json += "null";
  if (!is_cut) Close(json);
  return !is_cut || (has_json_ && at_ == At::kBetween);
}

}  // namespace somnus
