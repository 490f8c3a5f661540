#include "text/tools/element_arguments.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "text/tools/json_text.h"

namespace somnus {
namespace {

constexpr size_t kMaxTag = 1024;

bool IsBlank(absl::string_view text) {
  for (const char c : text) {
    if (!IsJsonSpace(c)) return false;
  }
  return true;
}

}  // namespace

ElementArguments::ElementArguments(const ToolFormat& format, const ToolSchemas& schemas, std::string tool,
                                   const TurnLimits& limits)
    : format_(format), schemas_(schemas), tool_(std::move(tool)), limits_(limits) {}

ReadState ElementArguments::Read(char c, std::string* json) {
  if (in_tag_) return ReadTag(c, json);
  mark_ += c;
  if (mark_ == format_.tags.key_begin) {
    in_tag_ = true;
    mark_.clear();
    tag_.clear();
    return ReadState::kMore;
  }
  if (absl::StartsWith(format_.tags.key_begin, mark_)) return ReadState::kMore;
  return Literal(std::exchange(mark_, {}), json);
}

// The text's first byte begins no marker; a later one may.
ReadState ElementArguments::Literal(const std::string& text, std::string* json) {
  for (size_t i = 0; i < text.size(); ++i) {
    const ReadState state = i == 0 ? ReadText(text[i], json) : Read(text[i], json);
    if (state == ReadState::kMore) continue;
    unread_ += text.substr(i, text.size() - 1 - i);
    return state;
  }
  return ReadState::kMore;
}

ReadState ElementArguments::ReadText(char c, std::string* json) {
  if (open_.empty()) return IsJsonSpace(c) ? ReadState::kMore : Stop("", json);
  if (open_.back().close != 0) return ReadState::kMore;  // between elements
  if (open_.back().types != kStringType) {
    text_ += c;
    return static_cast<int64_t>(text_.size()) > limits_.max_argument_bytes ? Stop("", json)
                                                                           : ReadState::kMore;
  }
  if (!std::exchange(begun_, true)) *json += '"';
  AppendEscaped(c, json);
  return ReadState::kMore;
}

ReadState ElementArguments::ReadTag(char c, std::string* json) {
  tag_ += c;
  if (tag_.size() > kMaxTag) return Stop(absl::StrCat(format_.tags.key_begin, tag_.substr(0, kMaxTag)), json);
  if (c != '>') return ReadState::kMore;
  in_tag_ = false;
  tag_.pop_back();
  return absl::StartsWith(tag_, "/") ? EndTag(json) : BeginElement(tag_, json);
}

// End tags may lack where the call, or all calls, end.
ReadState ElementArguments::EndTag(std::string* json) {
  const std::string whole = absl::StrCat(format_.tags.key_begin, tag_, ">");
  if (!open_.empty() && tag_.substr(1) == open_.back().name) {
    EndElement(json);
    return ReadState::kMore;
  }
  if (whole == format_.call_end.front()) {
    EndAll(json);
    return ReadState::kDone;
  }
  if (open_.empty() || whole == format_.section_end) return Stop(whole.substr(0, whole.size() - 1), json);
  return Literal(whole, json);
}

ReadState ElementArguments::BeginElement(const std::string& name, std::string* json) {
  const bool is_text = !open_.empty() && open_.back().types == kStringType;
  if (is_text || name.empty() || static_cast<int>(open_.size()) >= limits_.max_depth)
    return Literal(absl::StrCat(format_.tags.key_begin, name, ">"), json);
  if (open_.empty()) {
    absl::StrAppend(json, num_parameters_++ == 0 ? "{" : ", ", Quoted(name), ": ");
  } else {
    Element& parent = open_.back();
    if (parent.close == 0) {
      const bool is_array = (parent.types & kArrayType) != 0 && (parent.types & kObjectType) == 0;
      parent.close = is_array ? ']' : '}';
      *json += is_array ? '[' : '{';
    }
    if (parent.num_elements++ > 0) *json += ", ";
    if (parent.close == '}') absl::StrAppend(json, Quoted(name), ": ");
  }
  open_.push_back({.name = name});
  open_.back().types = schemas_.TypesAt(tool_, Path());
  text_.clear();
  begun_ = false;
  return ReadState::kMore;
}

std::vector<std::string> ElementArguments::Path() const {
  std::vector<std::string> path;
  for (const Element& element : open_) path.push_back(element.name);
  return path;
}

void ElementArguments::EndElement(std::string* json) {
  const Element element = std::move(open_.back());
  open_.pop_back();
  if (element.close != 0) {
    *json += element.close;
  } else if (element.types == kStringType) {
    *json += begun_ ? "\"" : "\"\"";
  } else if ((element.types == kArrayType || element.types == kObjectType) && IsBlank(text_)) {
    *json += element.types == kArrayType ? "[]" : "{}";
  } else {
    *json += JsonOfText(text_, element.types, limits_.max_depth - static_cast<int>(open_.size()));
  }
  begun_ = false;
  text_.clear();
}

void ElementArguments::EndAll(std::string* json) {
  while (!open_.empty()) EndElement(json);
  *json += num_parameters_ == 0 ? "{}" : "}";
}

// `unread`: text that was read before the last byte, and follows the call.
ReadState ElementArguments::Stop(absl::string_view unread, std::string* json) {
  EndAll(json);
  unread_ = std::string(unread);
  return ReadState::kStop;
}

bool ElementArguments::Finish(bool is_cut, std::string* json) {
  if (!is_cut) EndAll(json);
  return !is_cut;
}

}  // namespace somnus
