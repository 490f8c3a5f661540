#pragma once
// A turn in GPT-OSS's harmony format: messages, each with a header that names a channel and perhaps a
// recipient. "analysis" is reasoning; messages to functions are calls; all else is content. Source: OpenAI's
// description of the format, and vLLM's parser, which joins messages of one kind with a line break.

#include <string>

#include "text/tools/json_scanner.h"
#include "text/tools/marker_scanner.h"
#include "text/tools/turn_grammar.h"

namespace somnus {

class HarmonyTurn : public TurnGrammar {
 public:
  // `has_tools`: messages to functions are calls; otherwise they are content. `max_depth`: of arguments'
  // nesting. `output` must outlive the turn.
  HarmonyTurn(bool has_tools, bool starts_in_reasoning, int max_depth, TurnOutput* output);

  void Read(char c) override;
  void Finish(bool is_cut) override;
  bool in_reasoning() const override { return state_ == State::kBody && kind_ == Kind::kReasoning; }

 private:
  enum class State { kHeader, kBody };
  enum class Kind { kReasoning, kContent, kCall };
  void ReadHeader(char c);
  bool MayBeHeader() const;
  void EndHeader();
  void ReadBody(char c);
  void BeginBody(Kind kind);
  void Body(absl::string_view text);
  void EndBody();
  void ReadArguments(char c);
  bool HasWholeArguments() const;

  const bool has_tools_;
  const int max_depth_;
  TurnOutput* const output_;
  MarkerScanner body_scanner_;
  State state_;
  Kind kind_ = Kind::kReasoning;
  std::string header_;
  bool has_arguments_ = false;
  JsonScanner arguments_;           // finds the end of the arguments
  bool arguments_are_json_ = true;  // so far; the model's own tools take other texts, too
  bool has_ended_message_ = false;
  bool needs_break_[2] = {false, false};  // by kind: a message of that kind has ended
  bool had_text_[2] = {false, false};
};

}  // namespace somnus
