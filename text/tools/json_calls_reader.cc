#include "text/tools/json_calls_reader.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "text/tools/json_text.h"

namespace somnus {
namespace {

// The text of a JSON string, or nullopt where `json` is no string.
std::optional<std::string> StringOf(const std::string& json) {
  const nlohmann::json value = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!value.is_string()) return std::nullopt;
  return value.get<std::string>();
}

}  // namespace

ReadState JsonCallsReader::Read(char c) {
  if (at_ == At::kKey) return ReadKey(c);
  if (at_ == At::kValue) return ReadValue(c);
  return IsJsonSpace(c) ? ReadState::kMore : ReadStructure(c);
}

ReadState JsonCallsReader::ReadStructure(char c) {
  switch (at_) {
    case At::kStart:
      return ReadStart(c);
    case At::kKeyOrEnd:
      if (c == '"') {
        at_ = At::kKey;
        scanner_ = JsonScanner(limits_.max_depth);
        buffer_.clear();
        return ReadKey(c);
      }
      break;
    case At::kColon:
      if (c != ':') return Stop();
      at_ = At::kValue;
      scanner_ = JsonScanner(limits_.max_depth);
      buffer_.clear();
      value_started_ = false;
      return ReadState::kMore;
    case At::kNextOrEnd:
      if (c == ']') return ReadState::kDone;
      if (c == '{') return ReadStart(c);
      if (c != ',') return Stop();
      at_ = At::kStart;
      return ReadState::kMore;
    default:
      if (c == ',') {
        at_ = At::kKeyOrEnd;
        return ReadState::kMore;
      }
  }
  if (c != '}' || !EndObject()) return Stop();
  at_ = At::kNextOrEnd;
  return in_array_ ? ReadState::kMore : ReadState::kDone;
}

ReadState JsonCallsReader::ReadStart(char c) {
  if (c == '[' && !in_array_) {
    in_array_ = true;
    return ReadState::kMore;
  }
  if (c != '{') return ReadState::kStop;
  call_ = Call::kNone;
  name_.reset();
  arguments_.reset();
  id_.clear();
  bytes_ = 0;
  at_ = At::kKeyOrEnd;
  return ReadState::kMore;
}

ReadState JsonCallsReader::ReadKey(char c) {
  const JsonScanner::Result result = scanner_.Read(c, &buffer_);
  if (++bytes_ > limits_.max_argument_bytes) return Stop();
  if (result == JsonScanner::Result::kMore) return ReadState::kMore;
  return result == JsonScanner::Result::kDone && EndKey() ? ReadState::kMore : Stop();
}

bool JsonCallsReader::EndKey() {
  const std::optional<std::string> key = StringOf(buffer_);
  if (!key.has_value()) return false;
  at_ = At::kColon;
  if (name_is_key_) {
    const bool is_first = !name_.has_value() && !key->empty();
    if (is_first) name_ = key;
    field_ = is_first ? Field::kArguments : Field::kOther;
    return true;
  }
  const bool is_name = *key == "name" || *key == "tool_name";
  const bool is_arguments = *key == "arguments" || *key == "parameters";
  field_ = is_name ? Field::kName : *key == "id" ? Field::kId : Field::kOther;
  // The first arguments of an object count.
  if (is_arguments && call_ == Call::kNone && !arguments_.has_value()) field_ = Field::kArguments;
  return true;
}

ReadState JsonCallsReader::ReadValue(char c) {
  if (!value_started_) {
    if (IsJsonSpace(c)) return ReadState::kMore;
    value_started_ = true;
    if (field_ == Field::kArguments && name_.has_value() && c == '{' && !BeginCall()) return ReadState::kStop;
  }
  if (++bytes_ > limits_.max_argument_bytes) return Stop();
  std::string delta;
  const JsonScanner::Result result = scanner_.Read(c, call_ == Call::kOpen ? &delta : &buffer_);
  if (call_ == Call::kOpen) output_->Arguments(delta);
  switch (result) {
    case JsonScanner::Result::kMore:
      return ReadState::kMore;
    case JsonScanner::Result::kDone:
      return EndValue() ? ReadState::kMore : Stop();
    case JsonScanner::Result::kDoneBefore:
      return EndValue() ? Read(c) : Stop();
    default:
      return Stop();
  }
}

bool JsonCallsReader::EndValue() {
  at_ = At::kCommaOrEnd;
  switch (field_) {
    case Field::kName:
      if (const std::optional<std::string> name = StringOf(buffer_); name.has_value() && !name->empty()) {
        if (!name_.has_value()) name_ = name;
        return true;
      }
      return false;
    case Field::kId:
      id_ = StringOf(buffer_).value_or("");
      return true;
    case Field::kArguments:
      if (call_ == Call::kOpen) {
        EndCall("");
        return true;
      }
      arguments_ = BufferedArguments();
      return !name_.has_value() || BeginWith(*arguments_);
    default:
      return true;
  }
}

// Some models write the arguments as a string that holds JSON; clients expect the JSON. No arguments are an
// empty object.
std::string JsonCallsReader::BufferedArguments() const {
  if (buffer_ == "null") return "{}";
  const std::optional<std::string> text = StringOf(buffer_);
  if (text.has_value() && IsJson(*text, limits_.max_depth)) return *text;
  return buffer_;
}

bool JsonCallsReader::EndObject() {
  if (call_ != Call::kNone) return true;
  if (!name_.has_value() || (!arguments_.has_value() && !has_marker_)) return false;
  return BeginWith(arguments_.value_or("{}"));
}

bool JsonCallsReader::BeginCall() {
  if (!output_->Begin(*name_, std::exchange(id_, {}))) return false;
  call_ = Call::kOpen;
  return true;
}

bool JsonCallsReader::BeginWith(const std::string& arguments, bool is_whole) {
  if (!BeginCall()) return false;
  EndCall(arguments, is_whole);
  return true;
}

void JsonCallsReader::EndCall(absl::string_view rest, bool is_whole) {
  output_->Arguments(rest);
  output_->End(is_whole);
  call_ = Call::kEnded;
}

ReadState JsonCallsReader::Stop() {
  if (call_ == Call::kOpen) EndCall(scanner_.Missing());
  return ReadState::kStop;
}

void JsonCallsReader::Finish(bool is_cut) {
  if (call_ == Call::kOpen) {
    const std::string missing = is_cut ? "" : scanner_.Missing();
    return EndCall(missing, /*is_whole=*/!missing.empty());
  }
  const bool is_in_object = at_ != At::kStart && at_ != At::kNextOrEnd;
  if (!is_in_object || call_ != Call::kNone || !name_.has_value()) return;
  const bool saw_arguments = field_ == Field::kArguments && (at_ == At::kColon || at_ == At::kValue);
  if (has_marker_ || saw_arguments) BeginWith(is_cut ? "" : "{}", !is_cut);
}

}  // namespace somnus
