#include "text/tools/plain_turn.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "text/tools/json_calls_reader.h"
#include "text/tools/json_text.h"
#include "text/tools/named_call_reader.h"
#include "text/tools/pythonic_calls_reader.h"

namespace somnus {
namespace {

constexpr size_t kMaxHeld = 1024;
constexpr size_t kMaxOpening = 128;

using Role = Marker::Role;

std::vector<Marker> MarkersOf(const ToolFormat* tools, const ReasoningFormat* reasoning) {
  std::vector<Marker> markers;
  const auto add = [&markers](Role role, absl::string_view text) {
    if (!text.empty()) markers.push_back({role, text});
  };
  if (reasoning != nullptr) {
    add(Role::kThinkBegin, reasoning->begin);
    add(Role::kThinkEnd, reasoning->end);
    for (const absl::string_view text : reasoning->answer_begin) add(Role::kAnswerBegin, text);
    for (const absl::string_view text : reasoning->answer_end) add(Role::kAnswerEnd, text);
  }
  if (tools == nullptr) return markers;
  add(Role::kSectionBegin, tools->section_begin);
  add(Role::kSectionEnd, tools->section_end);
  for (const absl::string_view text : tools->call_begin) add(Role::kCallBegin, text);
  for (const absl::string_view text : tools->call_end) add(Role::kCallEnd, text);
  add(Role::kNoise, tools->noise);
  return markers;
}

bool IsSpace(absl::string_view text) { return std::all_of(text.begin(), text.end(), IsJsonSpace); }

}  // namespace

PlainTurn::PlainTurn(const ToolFormat* tools, const ReasoningFormat* reasoning, bool starts_in_reasoning,
                     const ToolSchemas& schemas, const TurnLimits& limits, TurnOutput* output)
    : tools_(tools),
      reasoning_(reasoning),
      schemas_(schemas),
      limits_(limits),
      output_(output),
      text_scanner_(MarkersOf(tools, reasoning)),
      reasoning_scanner_(MarkersOf(tools, reasoning)),
      state_(reasoning != nullptr && starts_in_reasoning ? State::kReasoning : State::kText) {}

void PlainTurn::Read(char c) {
  switch (state_) {
    case State::kText:
      return ReadText(c);
    case State::kReasoning:
      return ReadReasoning(c);
    case State::kOpening:
      return ReadOpening(c);
    case State::kCall:
      return ReadCall(c);
  }
}

void PlainTurn::ReadText(char c) {
  std::string text;
  const Marker* const marker = text_scanner_.Read(c, &text);
  for (size_t i = 0; i < text.size(); ++i) {
    TextByte(text[i]);
    if (state_ == State::kText) continue;
    // A call has begun without a marker. The rest is read as a part of the call; if no call follows, the
    // call's text becomes content.
    const std::string held = marker != nullptr ? std::string(marker->text) : text_scanner_.Take();
    for (const char byte : text.substr(i + 1) + held) Read(byte);
    return;
  }
  if (marker != nullptr) ReadMarker(*marker);
}

void PlainTurn::TextByte(char c) {
  if (IsJsonSpace(c) && (tools_ != nullptr || HasAnswerEnd() || edge_ != Edge::kContent))
    return Hold({&c, 1});
  if (IsTrailer(c)) return Hold({&c, 1});
  if (MayOpenBare(c) || MayOpenNext(c)) {
    const bool has_marker = is_open_;
    Open("");
    has_marker_ = has_marker;
    return ReadOpening(c);
  }
  Literal({&c, 1});
}

bool PlainTurn::HasAnswerEnd() const {
  return in_answer_ || (reasoning_ != nullptr && reasoning_->answer_may_be_open);
}

void PlainTurn::Hold(absl::string_view text) {
  absl::StrAppend(&held_, text);
  if (held_.size() > kMaxHeld) Literal("");
}

void PlainTurn::FlushHeld() {
  absl::string_view text = held_;
  if (edge_ == Edge::kReasoningEnd) text = absl::StripLeadingAsciiWhitespace(text);
  if (!only_calls_) output_->Content(text);
  held_.clear();
  in_section_ = false;
}

void PlainTurn::Literal(absl::string_view text) {
  FlushHeld();
  if (!only_calls_) output_->Content(text);
  edge_ = Edge::kContent;
  is_open_ = false;
}

void PlainTurn::ReadMarker(const Marker& marker) {
  if (TakeMarker(marker)) return;
  Literal(marker.text);
}

// Returns false where the marker is a part of the text.
bool PlainTurn::TakeMarker(const Marker& marker) {
  switch (marker.role) {
    case Role::kThinkBegin:
      if (edge_ == Edge::kContent || !IsSpace(held_)) return false;
      held_.clear();
      has_reasoning_ = false;
      state_ = State::kReasoning;
      return true;
    case Role::kThinkEnd:  // written once more
      if (edge_ != Edge::kReasoningEnd || !IsSpace(held_)) return false;
      held_.clear();
      return true;
    case Role::kAnswerBegin:
      if (edge_ == Edge::kContent || !IsSpace(held_)) return false;
      held_.clear();
      in_answer_ = true;
      edge_ = Edge::kReasoningEnd;
      return true;
    case Role::kAnswerEnd:
      if ((!in_answer_ && !reasoning_->answer_may_be_open) || !IsSpace(held_)) return false;
      held_.clear();
      in_answer_ = false;
      edge_ = Edge::kReasoningEnd;
      return true;
    case Role::kSectionBegin:
      in_section_ = true;
      Hold(marker.text);
      return true;
    case Role::kCallBegin:
      if (!output_->may_begin()) return false;
      if (!in_section_ && !tools_->section_may_lack) return false;
      Open(marker.text);
      return true;
    default:  // what ends a call, or trails a call
      if (edge_ != Edge::kCallEnd) return false;
      held_.clear();
      is_open_ = false;
      in_section_ = in_section_ && marker.role != Role::kSectionEnd;
      return true;
  }
}

void PlainTurn::ReadReasoning(char c) {
  std::string text;
  const Marker* const marker = reasoning_scanner_.Read(c, &text);
  for (const char byte : text) ReasoningByte(byte);
  if (marker == nullptr) return;
  if (marker->role == Role::kThinkEnd) return LeaveReasoning();
  if (marker->role == Role::kThinkBegin && !has_reasoning_)
    return;  // the prompt has begun the reasoning already
  const bool may_open = marker->role == Role::kCallBegin || marker->role == Role::kSectionBegin;
  records_ = records_ || (may_open && last_reasoning_byte_ == '\n');
  for (const char byte : marker->text) ReasoningByte(byte);
}

void PlainTurn::ReasoningByte(char c) {
  last_reasoning_byte_ = c;
  if (records_) recorded_ += c;
  records_ = records_ && static_cast<int64_t>(recorded_.size()) <= limits_.max_argument_bytes;
  held_ += c;
  if (IsJsonSpace(c) && held_.size() <= kMaxHeld) return;
  absl::string_view reasoning = held_;
  if (!has_reasoning_) reasoning = absl::StripLeadingAsciiWhitespace(reasoning);
  has_reasoning_ = has_reasoning_ || !reasoning.empty();
  output_->Reasoning(reasoning);
  held_.clear();
}

void PlainTurn::LeaveReasoning() {
  held_.clear();
  records_ = false;
  recorded_.clear();
  last_reasoning_byte_ = '\n';
  edge_ = Edge::kReasoningEnd;
  state_ = State::kText;
}

// The model has ended its turn without an end of the reasoning: calls at the reasoning's end are meant as
// calls.
void PlainTurn::RescueCalls() {
  PlainTurn calls(tools_, nullptr, false, schemas_, limits_, output_);
  calls.only_calls_ = true;
  for (const char c : recorded_) calls.Read(c);
  calls.Finish(/*is_cut=*/false);
}

bool PlainTurn::MayOpenBare(char c) const {
  if (tools_ == nullptr || tools_->bare.find(c) == absl::string_view::npos || !output_->may_begin())
    return false;
  return edge_ != Edge::kContent && !in_section_;
}

// Behind one marker, some models write one object for each call.
bool PlainTurn::MayOpenNext(char c) const {
  return c == '{' && is_open_ && edge_ == Edge::kCallEnd && output_->may_begin();
}

// A bracket too many behind a call, and what stands between calls without markers.
bool PlainTurn::IsTrailer(char c) const {
  if (edge_ != Edge::kCallEnd) return false;
  if (c == '}') {
    return tools_->arguments != ArgumentSyntax::kTags && tools_->arguments != ArgumentSyntax::kElements;
  }
  if (tools_->trailers.find(c) != absl::string_view::npos) return true;
  return (c == ';' || c == ',') && (is_open_ || !tools_->bare.empty());
}

void PlainTurn::Open(absl::string_view marker) {
  raw_ = std::string(marker);
  has_marker_ = !marker.empty();
  has_call_ = false;
  opening_.clear();
  state_ = State::kOpening;
}

// The first bytes say which way of writing calls the model has chosen: JSON is understood in every family's
// place.
void PlainTurn::ReadOpening(char c) {
  opening_ += c;
  std::string significant;
  for (const char byte : opening_) {
    if (!IsJsonSpace(byte)) significant += byte;
  }
  if (significant.empty() && opening_.size() <= kMaxOpening) return;
  if (significant == "[" && tools_->body != CallBody::kJson && opening_.size() <= kMaxOpening) return;
  significant.resize(std::max<size_t>(significant.size(), 2));
  MakeReader(significant[0], significant[1]);
  state_ = State::kCall;
  const std::string bytes = std::exchange(opening_, {});
  for (const char byte : bytes) Read(byte);
}

void PlainTurn::MakeReader(char first, char second) {
  const bool is_json = first == '{' || (first == '[' && second == '{');
  if (tools_->body == CallBody::kJson || is_json) {
    reader_ = std::make_unique<JsonCallsReader>(has_marker_ && !tools_->marks_any_json, tools_->name_is_key,
                                                limits_, output_);
  } else if (tools_->body == CallBody::kPythonic) {
    reader_ = std::make_unique<PythonicCallsReader>(!has_marker_, limits_, output_);
  } else {
    reader_ = std::make_unique<NamedCallReader>(*tools_, schemas_, limits_, output_);
  }
}

void PlainTurn::ReadCall(char c) {
  const ReadState state = reader_->Read(c);
  const bool has_progress = output_->TakeProgress();
  if (has_progress) NoteProgress();
  if (state == ReadState::kMore) {
    if (!has_progress && !output_->in_call()) raw_ += c;
    return;
  }
  const bool is_done = state == ReadState::kDone;
  const std::string rest = is_done || has_progress ? reader_->unread() : "";
  if (is_done) raw_.clear();
  LeaveCall();
  for (const char byte : rest) Read(byte);
  if (!is_done) Read(c);
}

void PlainTurn::NoteProgress() {
  raw_.clear();
  held_.clear();
  edge_ = Edge::kCallEnd;
  has_call_ = true;
  is_open_ = has_marker_ && tools_->body == CallBody::kJson;
}

void PlainTurn::LeaveCall() {
  state_ = State::kText;
  reader_.reset();
  const std::string raw = std::exchange(raw_, {});
  if (!IsSpace(raw)) return Literal(raw);
  held_ += raw;
}

bool PlainTurn::HoldsSection() const {
  return tools_ != nullptr && !tools_->section_begin.empty() &&
         absl::StrContains(held_, tools_->section_begin);
}

void PlainTurn::FinishText() {
  const bool is_part_of_end = edge_ == Edge::kCallEnd && !HoldsSection() &&
                              text_scanner_.HoldsPartOf(Role::kCallEnd, Role::kSectionEnd);
  std::string held = text_scanner_.Take();
  if (is_part_of_end) held.clear();
  while (!held.empty()) {
    const char c = held.front();
    held.erase(0, 1);
    state_ == State::kText ? TextByte(c) : Read(c);
    if (state_ == State::kText) held.insert(0, text_scanner_.Take());
  }
  if (state_ != State::kText) return;
  const bool is_content = edge_ == Edge::kContent || edge_ == Edge::kStart || HoldsSection();
  if (is_content) {
    FlushHeld();
  } else {
    held_.clear();
  }
}

void PlainTurn::Finish(bool is_cut) {
  if (state_ == State::kText) FinishText();
  if (state_ == State::kReasoning) {
    for (const char c : reasoning_scanner_.Take()) ReasoningByte(c);
    held_.clear();
    if (!is_cut && records_) RescueCalls();
  }
  if (state_ == State::kOpening) Literal(raw_ + opening_);
  if (state_ != State::kCall) return;
  reader_->Finish(is_cut);
  if (output_->TakeProgress()) NoteProgress();
  if (has_call_) raw_.clear();  // the rest of the call's object, and the begin of one more call
  LeaveCall();
  if (edge_ != Edge::kCallEnd) FlushHeld();
}

}  // namespace somnus
