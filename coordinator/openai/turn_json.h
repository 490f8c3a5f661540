#pragma once
// The JSON of a chat answer that is taken apart into reasoning, content and tool calls
// (text/tools/turn_event.h), as OpenAI's chat route has it. Reasoning has two names: `reasoning`, vLLM's, and
// `reasoning_content`, which clients of DeepSeek's API read. All functions append to `out`. Internal to
// coordinator/openai.

#include <cstdint>
#include <string>
#include <vector>

#include "text/tools/turn_event.h"

namespace somnus {

// The parts of a whole answer, collected from the events. A value.
class CollectedTurn {
 public:
  void Add(const std::vector<TurnEvent>& events);
  bool has_calls() const { return !calls_.empty(); }
  // Appends `"content":...,...` up to and with `"tool_calls":[...]`, without the message's role. Content that
  // is empty beside reasoning or calls is null. Tool calls are left out where there are none.
  // `legacy_functions`: the first call is `function_call` (legacy_functions.h).
  void AppendMessage(bool legacy_functions, std::string* out) const;

 private:
  struct Call {
    std::string id, name, arguments;
  };
  std::string content_, reasoning_;
  std::vector<Call> calls_;
};

// Whether a stream tells the event: it does not tell the end of a call.
inline bool IsTold(const TurnEvent& event) { return event.kind != TurnEvent::Kind::kCallEnd; }
// About how many bytes of JSON the event makes.
int64_t TurnEventJsonBytes(const TurnEvent& event);
// Appends the members of a chunk's delta: `"content":"..."`, for example. IsTold(event) must hold.
// `legacy_functions`: as of CollectedTurn.
void AppendTurnDelta(const TurnEvent& event, bool legacy_functions, std::string* out);

}  // namespace somnus
