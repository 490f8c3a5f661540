#pragma once
// How families of models write tool calls and reasoning: one row of data for each format. The rows are the
// only place that knows a family's markers; parsers (turn_parser.h) and grammars (forced_calls.h) read the
// rows. Sources: the chat templates of the families, and the parsers of vLLM 0.33 and SGLang 0.5, whose names
// the rows have. Immutable; thread safe.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace somnus {

// How a call is written between the markers.
enum class CallBody {
  kJson,      // {"name": "f", "arguments": {...}}, or an array of such objects
  kNamed,     // the name, then the arguments
  kPythonic,  // f(a="x"): a list of such calls, or one call a line
  kHarmony,   // messages in channels; the whole turn has this form
};

// How the arguments of a call of kNamed are written.
enum class ArgumentSyntax {
  kJson,
  kTags,      // a tag for each parameter; the schema says how its text is converted
  kGemma,     // {a:<|"|>text<|"|>,n:1}
  kElements,  // an element for each parameter, with elements within; tags.key_begin stands before the names
};

enum class CallIdStyle {
  kRandom,            // "call_" and 24 hexadecimal digits
  kNineAlphanumeric,  // Mistral's templates accept no other form
  kFunctionIndex,     // functions.NAME:INDEX, counted over the conversation (Kimi K2)
};

// The text between the marker that begins a call and the arguments. White space is allowed between the parts.
struct CallHeader {
  absl::string_view prefix;    // before the name
  absl::string_view type_end;  // ends a word before the name; without that word, the word is the name
  absl::string_view id_mark;   // may follow the name, and the call's id follows
  absl::string_view name_end;  // ends the header; empty: the arguments follow the name at once
  bool name_end_may_lack = false;
  absl::string_view attributes_end;  // text behind name_end, up to attributes_end, is skipped
};

// <key_begin>KEY<key_end><value_begin>VALUE<value_end>
struct TagSyntax {
  absl::string_view key_begin, key_end;
  absl::string_view value_begin, value_end;
  bool has_attributes = false;                // after key_end, up to '>'
  absl::string_view string_mark, other_mark;  // of the attributes: the value is a string, or is none
  bool wraps_lines = false;                   // the line breaks around a value do not belong to the value
};

// A forced call as a structural tag: `open`, calls with `separator` between them, `close`. A call is `begin`
// with NAME for the tool's name, arguments that fit the schema, written in `style`, and `end`.
struct ForcedSyntax {
  absl::string_view open, begin, end, separator, close;
  absl::string_view style = "json";  // of xgrammar's json_schema format
  absl::string_view trigger;         // free text ends where this text begins a call
};

struct ToolFormat {
  absl::string_view name;                  // as vLLM's --tool-call-parser; unique
  std::vector<absl::string_view> aliases;  // other names of vLLM and SGLang
  CallBody body = CallBody::kJson;
  bool name_is_key = false;                      // of kJson: {"f": {...}}
  absl::string_view section_begin, section_end;  // around all calls of a turn
  bool section_may_lack = true;                  // calls outside of a section are calls, too
  std::vector<absl::string_view> call_begin, call_end;
  // The whole turn may be calls without a marker: the bytes that begin such a turn.
  absl::string_view bare = "";
  CallHeader header = {};
  ArgumentSyntax arguments = ArgumentSyntax::kJson;
  TagSyntax tags = {};
  absl::string_view quote = "";     // around strings of kGemma
  absl::string_view noise = "";     // dropped after a call
  absl::string_view trailers = "";  // bytes that are dropped after a call
  bool marks_any_json = false;      // call_begin may stand before other JSON: a call needs arguments
  CallIdStyle ids = CallIdStyle::kRandom;
  bool special_markers = true;  // markers are special tokens, so that they must not be skipped as such
  ForcedSyntax forced = {};     // an empty `begin`: no structural tag expresses the calls
};

struct ReasoningFormat {
  absl::string_view name;                  // as vLLM's --reasoning-parser; unique
  std::vector<absl::string_view> aliases;  // other names of vLLM and SGLang
  absl::string_view begin, end;            // markers around the reasoning
  bool harmony = false;  // channels of messages: `begin` and `end` are the analysis channel's
  // The text that ends the reasoning from outside, when a budget of thinking is spent.
  absl::string_view forced_end;
  // Without a marker in the prompt the model begins inside (DeepSeek-R1 before its template opened <think>).
  bool begins_inside = false;
  // Markers around the answer that follows the reasoning; dropped with the white space next to them.
  std::vector<absl::string_view> answer_begin = {}, answer_end = {};
  // The prompt may have begun the answer, so that an end without a begin is a marker, too.
  bool answer_may_be_open = false;
};

// A format of vLLM or SGLang that no row describes, and why.
struct UnreadFormat {
  absl::string_view name, reason;
};

const std::vector<ToolFormat>& ToolFormats();
const std::vector<ReasoningFormat>& ReasoningFormats();

const std::vector<UnreadFormat>& UnreadToolFormats();
const std::vector<UnreadFormat>& UnreadReasoningFormats();

// Null: no row has this name or alias.
const ToolFormat* FindToolFormat(absl::string_view name);
const ReasoningFormat* FindReasoningFormat(absl::string_view name);

// The form of forced calls where a family's own form has no grammar: the turn is an array of
// {"name": "f", "parameters": {...}}, as vLLM has for tool_choice "required".
const ToolFormat& ForcedJsonFormat();

}  // namespace somnus
