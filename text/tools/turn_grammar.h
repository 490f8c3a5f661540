#pragma once
// The parts that the two kinds of turns share: text with markers (plain_turn.h) and messages in channels
// (harmony_turn.h).

#include <functional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "text/tools/call_reader.h"
#include "text/tools/turn_event.h"

namespace somnus {

// Makes the id of a call for which the model wrote none, from the tool's name and the call's index in the
// turn.
using MakeCallId = std::function<std::string(absl::string_view name, int32_t index)>;

// Writes a turn's events, and counts the calls. Not thread safe.
class TurnOutput : public CallOutput {
 public:
  TurnOutput(const TurnLimits& limits, MakeCallId make_id) : limits_(limits), make_id_(std::move(make_id)) {}

  bool Begin(std::string name, std::string id) override;
  void Arguments(absl::string_view json) override;
  void End(bool is_whole = true) override;
  void Reasoning(absl::string_view text) { events_.AddText(TurnEvent::Kind::kReasoning, text); }
  void Content(absl::string_view text) { events_.AddText(TurnEvent::Kind::kContent, text); }

  // Whether a call has begun or ended since the last question.
  bool TakeProgress() { return std::exchange(has_progress_, false); }
  bool in_call() const { return in_call_; }
  bool may_begin() const { return num_calls_ < limits_.max_calls; }
  TurnEvents& events() { return events_; }

 private:
  const TurnLimits limits_;
  const MakeCallId make_id_;
  TurnEvents events_;
  int32_t num_calls_ = 0;
  bool in_call_ = false;
  bool has_progress_ = false;
};

class TurnGrammar {
 public:
  virtual ~TurnGrammar() = default;
  virtual void Read(char c) = 0;
  virtual void Finish(bool is_cut) = 0;
  // Whether the text that comes next is reasoning.
  virtual bool in_reasoning() const = 0;
};

}  // namespace somnus
