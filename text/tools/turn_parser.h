#pragma once
// Takes a model's turn apart while the text comes: reasoning, content, tool calls. The whole turn and the
// turn in pieces give the same: the parser decides byte by byte, and what may still become a marker is held
// back.
//
// Promises. Nothing of the text is lost but markers, white space next to reasoning and calls, brackets too
// many behind a call, and what a call that is malformed or cut holds besides its arguments. A marker that
// begins no call is content. A marker inside of reasoning or of a string is text. Names that no tool has are
// passed on. A call that the text's length cuts is a call with cut arguments. Arguments of formats that write
// JSON are the model's own text; other formats are converted by the tool's schema. The time is linear in the
// text's length.
//
// One parser for each choice of a response. Not thread safe; to be used where text is made, off the engine's
// thread.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "text/tools/tool_format.h"
#include "text/tools/tool_schemas.h"
#include "text/tools/turn_event.h"
#include "text/tools/turn_grammar.h"

namespace somnus {

// The formats to look for in a turn. Null: calls, or reasoning, stay content. With a harmony format in one
// place, channels are read in any case.
struct TurnFormat {
  const ToolFormat* tools = nullptr;
  const ReasoningFormat* reasoning = nullptr;
};

// How the text has ended.
enum class TurnEnd {
  kStop,  // by the model, or by a stop string that marks the end of calls
  kCut,   // by its length, by an abort, or by any other stop string
};

struct TurnOptions {
  bool starts_in_reasoning = false;  // StartsInReasoning says so of a prompt
  TurnLimits limits;
  MakeCallId make_id;  // empty: CallIdMaker of the format, for a conversation without earlier calls
};

class TurnParser {
 public:
  // `schemas` may be null where no tools are given; it must outlive the parser, as the formats must.
  TurnParser(const TurnFormat& format, const ToolSchemas* schemas, TurnOptions options = {});
  ~TurnParser();

  // Reads the next part of the text, in UTF-8, and returns what the part adds.
  std::vector<TurnEvent> Feed(absl::string_view text);
  // The text has ended. To be called once, last. Returns the rest; every call that has begun has ended then.
  std::vector<TurnEvent> Finish(TurnEnd end);

  // Whether the next token is reasoning: for counting tokens and for a budget of thinking. A marker that is
  // only partly read does not count yet.
  bool in_reasoning() const { return grammar_->in_reasoning(); }

 private:
  const ToolSchemas no_tools_;
  std::unique_ptr<TurnOutput> output_;
  std::unique_ptr<TurnGrammar> grammar_;
};

// A whole turn.
struct ParsedTurn {
  struct Call {
    std::string id, name, arguments;
  };
  std::string reasoning, content;
  std::vector<Call> calls;

  void Add(const std::vector<TurnEvent>& events);
};
ParsedTurn ParseTurn(const TurnFormat& format, const ToolSchemas* schemas, absl::string_view text,
                     TurnEnd end, TurnOptions options = {});

// Whether the model's text begins inside of reasoning, by what the prompt ends with: the marker that begins
// reasoning, and behind the marker nothing but white space. `continues`: the prompt ends with a part of the
// answer (continue_final_message), so that the answer's reasoning may be under way.
bool StartsInReasoning(const ReasoningFormat& format, absl::string_view prompt, bool continues = false);

}  // namespace somnus
