#include "text/tools/harmony_turn.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "text/tools/tool_format.h"

namespace somnus {
namespace {

constexpr size_t kMaxHeader = 1024;
constexpr absl::string_view kStart = "<|start|>";
constexpr absl::string_view kChannel = "<|channel|>";
constexpr absl::string_view kMessage = "<|message|>";
constexpr absl::string_view kTo = "to=";

// A message ends with an end marker, or where the header of the next message begins. In a string of a call's
// arguments markers are text.
std::vector<Marker> BodyMarkers() {
  std::vector<Marker> markers = {{Marker::Role::kCallBegin, kStart}, {Marker::Role::kCallBegin, kChannel}};
  for (const absl::string_view text : FindToolFormat("openai")->call_end)
    markers.push_back({Marker::Role::kCallEnd, text});
  return markers;
}

// The word behind `mark` in the header, up to white space or a marker.
std::string WordBehind(absl::string_view header, absl::string_view mark) {
  const size_t at = header.find(mark);
  if (at == absl::string_view::npos) return "";
  absl::string_view word = header.substr(at + mark.size());
  return std::string(word.substr(0, word.find_first_of(" \n\t<")));
}

bool MayBegin(absl::string_view text, absl::string_view mark) {
  return absl::StartsWith(text, mark) || absl::StartsWith(mark, text);
}

}  // namespace

HarmonyTurn::HarmonyTurn(bool has_tools, bool starts_in_reasoning, int max_depth, TurnOutput* output)
    : has_tools_(has_tools),
      max_depth_(max_depth),
      output_(output),
      body_scanner_(BodyMarkers()),
      state_(starts_in_reasoning ? State::kBody : State::kHeader),
      arguments_(max_depth) {}

void HarmonyTurn::Read(char c) { state_ == State::kHeader ? ReadHeader(c) : ReadBody(c); }

bool HarmonyTurn::MayBeHeader() const {
  const absl::string_view text = absl::StripLeadingAsciiWhitespace(header_);
  if (header_.size() > kMaxHeader) return false;
  return MayBegin(text, kStart) || MayBegin(text, kChannel) || MayBegin(text, kTo) ||
         MayBegin(text, kMessage);
}

void HarmonyTurn::ReadHeader(char c) {
  header_ += c;
  if (absl::EndsWith(header_, kMessage)) return EndHeader();
  if (MayBeHeader()) return;
  // Text where a header should be is content, as an answer without channels is.
  const std::string text = std::exchange(header_, {});
  BeginBody(Kind::kContent);
  for (const char byte : text) ReadBody(byte);
}

void HarmonyTurn::EndHeader() {
  const std::string channel = WordBehind(header_, kChannel);
  const std::string recipient = WordBehind(header_, kTo);
  header_.clear();
  const bool is_function = absl::StartsWith(recipient, "functions.");
  const std::string name(absl::StripPrefix(recipient, "functions."));
  // The analysis may call the model's own tools, which nobody has offered: that is reasoning.
  const bool is_call = has_tools_ && !name.empty() && (is_function || channel != "analysis");
  if (is_call && output_->Begin(name, "")) {
    has_arguments_ = false;
    arguments_ = JsonScanner(max_depth_);
    arguments_are_json_ = true;
    return BeginBody(Kind::kCall);
  }
  BeginBody(channel == "analysis" ? Kind::kReasoning : Kind::kContent);
}

void HarmonyTurn::BeginBody(Kind kind) {
  kind_ = kind;
  state_ = State::kBody;
}

void HarmonyTurn::ReadBody(char c) {
  std::string text;
  const Marker* const marker = body_scanner_.Read(c, &text);
  Body(text);
  if (marker == nullptr) return;
  if (kind_ == Kind::kCall && arguments_are_json_ && arguments_.in_string()) return Body(marker->text);
  EndBody();
  if (marker->role == Marker::Role::kCallBegin) header_ = std::string(marker->text);
}

void HarmonyTurn::Body(absl::string_view text) {
  if (text.empty()) return;
  if (kind_ == Kind::kCall) {
    has_arguments_ = true;
    for (const char c : text) ReadArguments(c);
    return output_->Arguments(text);
  }
  const size_t kind = kind_ == Kind::kReasoning ? 0 : 1;
  had_text_[kind] = true;
  const absl::string_view line_break = std::exchange(needs_break_[kind], false) ? "\n" : "";
  for (const absl::string_view part : {line_break, text}) {
    kind_ == Kind::kReasoning ? output_->Reasoning(part) : output_->Content(part);
  }
}

void HarmonyTurn::ReadArguments(char c) {
  std::string json;
  const JsonScanner::Result result = arguments_.Read(c, &json);
  const bool is_behind = result == JsonScanner::Result::kDoneBefore && !absl::ascii_isspace(c);
  if (is_behind || result == JsonScanner::Result::kBad) arguments_are_json_ = false;
}

bool HarmonyTurn::HasWholeArguments() const { return arguments_are_json_ && arguments_.done(); }

void HarmonyTurn::EndBody() {
  if (kind_ == Kind::kCall) {
    if (!has_arguments_) output_->Arguments("{}");
    output_->End();
  } else {
    const size_t kind = kind_ == Kind::kReasoning ? 0 : 1;
    needs_break_[kind] = had_text_[kind];
  }
  has_ended_message_ = true;
  state_ = State::kHeader;
}

void HarmonyTurn::Finish(bool is_cut) {
  if (state_ == State::kBody) {
    const std::string held = body_scanner_.Take();  // behind whole arguments: a part of their end's marker
    if (kind_ != Kind::kCall || !HasWholeArguments()) Body(held);
    if (kind_ != Kind::kCall) return;
    if (!has_arguments_ && !is_cut) output_->Arguments("{}");
    const bool may_be_cut = has_arguments_ && arguments_are_json_;
    return output_->End(/*is_whole=*/may_be_cut ? HasWholeArguments() : !is_cut);
  }
  // A header without a message says nothing; what is not yet a header is content.
  const bool is_header = absl::StrContains(header_, kStart) || absl::StrContains(header_, kChannel);
  if (is_header || has_ended_message_ || absl::StripAsciiWhitespace(header_).empty()) return;
  kind_ = Kind::kContent;
  Body(header_);
}

}  // namespace somnus
