#pragma once
// A turn that is text with markers: reasoning between two markers, content, calls behind markers or from the
// turn's first byte on. Text that looks like the begin of a call and is none is content. White space next to
// reasoning and calls belongs to the markers and is dropped.

#include <memory>
#include <string>

#include "text/tools/marker_scanner.h"
#include "text/tools/tool_format.h"
#include "text/tools/tool_schemas.h"
#include "text/tools/turn_grammar.h"

namespace somnus {

class PlainTurn : public TurnGrammar {
 public:
  // `tools` or `reasoning` may be null: calls, or reasoning, are not looked for. All pointers and references
  // must outlive the turn.
  PlainTurn(const ToolFormat* tools, const ReasoningFormat* reasoning, bool starts_in_reasoning,
            const ToolSchemas& schemas, const TurnLimits& limits, TurnOutput* output);

  void Read(char c) override;
  void Finish(bool is_cut) override;
  bool in_reasoning() const override { return state_ == State::kReasoning; }

 private:
  enum class State { kText, kReasoning, kOpening, kCall };
  // The end of the text, white space aside.
  enum class Edge { kStart, kReasoningEnd, kCallEnd, kContent };

  void ReadText(char c);
  void TextByte(char c);
  void ReadMarker(const Marker& marker);
  bool TakeMarker(const Marker& marker);
  void Hold(absl::string_view text);
  void FlushHeld();
  void Literal(absl::string_view text);

  void ReadReasoning(char c);
  void ReasoningByte(char c);
  void LeaveReasoning();
  void RescueCalls();

  // Whether a marker may end the answer, so that white space before the marker is held back.
  bool HasAnswerEnd() const;
  bool MayOpenBare(char c) const;
  bool MayOpenNext(char c) const;
  bool IsTrailer(char c) const;
  void Open(absl::string_view marker);
  void ReadOpening(char c);
  void MakeReader(char first, char second);
  void ReadCall(char c);
  void LeaveCall();
  void NoteProgress();

  bool HoldsSection() const;
  void FinishText();

  const ToolFormat* const tools_;
  const ReasoningFormat* const reasoning_;
  const ToolSchemas& schemas_;
  const TurnLimits limits_;
  TurnOutput* const output_;
  MarkerScanner text_scanner_, reasoning_scanner_;
  State state_;
  Edge edge_ = Edge::kStart;
  // White space, and markers of sections and what trails a call: dropped before and behind calls, content
  // otherwise.
  std::string held_;
  bool in_section_ = false;
  bool in_answer_ = false;  // a marker has begun the answer

  bool has_call_ = false;  // of kCall: a call of this marker has ended
  std::string raw_;        // of kOpening and kCall: what is content if no call begins
  std::string opening_;    // of kOpening: behind the marker
  bool has_marker_ = false;
  bool is_open_ = false;  // a call of JSON has ended, and its marker's end has not come
  std::unique_ptr<CallReader> reader_;

  bool has_reasoning_ = false;  // in this block of reasoning: text besides white space
  char last_reasoning_byte_ = '\n';
  bool records_ = false;  // the reasoning holds the marker of a call at the start of a line
  std::string recorded_;  // the reasoning since that marker
  bool only_calls_ = false;
};

}  // namespace somnus
