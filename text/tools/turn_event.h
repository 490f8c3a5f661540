#pragma once
// The parts of a model's turn, in the order of the text: reasoning, content and calls.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace somnus {

struct TurnEvent {
  enum class Kind { kReasoning, kContent, kCallBegin, kArguments, kCallEnd };
  Kind kind = Kind::kContent;
  std::string text;     // kReasoning, kContent; kArguments: a part of the JSON text
  int32_t call = -1;    // of the three events of calls: which call of the turn, from 0
  bool is_cut = false;  // kCallEnd: the text has ended before the arguments did
  std::string id;       // kCallBegin
  std::string name;     // kCallBegin; the model may have invented the name

  bool operator==(const TurnEvent& other) const = default;
};

// Collects events. Text of one kind is joined, and never ends inside of a UTF-8 character. Not thread safe.
class TurnEvents {
 public:
  void AddText(TurnEvent::Kind kind, absl::string_view text, int32_t call = -1);
  void AddBegin(int32_t call, std::string id, std::string name);
  void AddEnd(int32_t call, bool is_cut);

  // Returns the events since the last call, but for the bytes of a character that is not complete.
  std::vector<TurnEvent> Take();
  // Returns what Take held back, too.
  std::vector<TurnEvent> TakeAll();

 private:
  std::vector<TurnEvent> events_;
};

}  // namespace somnus
