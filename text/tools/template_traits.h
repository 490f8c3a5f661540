#pragma once
// A chat template's family, as the template's text shows it: the formats of tool calls and reasoning, and in
// which form the template wants the calls of earlier turns. Pure functions; thread safe.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/jinja/chat_template.h"
#include "text/tools/tool_format.h"

namespace somnus {

// The format whose markers the template's text has; where several match, the format that only its own family
// has. Null: the template has no known marker.
const ToolFormat* ToolFormatOfTemplate(absl::string_view source);
const ReasoningFormat* ReasoningFormatOfTemplate(absl::string_view source);

// --tool-call-parser and --reasoning-parser: "auto" takes the template's format, "none" is null, and any
// other value is a name or alias; mistral's two formats have one name, and the template says which.
// InvalidArgument lists the known names.
absl::StatusOr<const ToolFormat*> ChooseToolFormat(absl::string_view flag, absl::string_view source);
absl::StatusOr<const ReasoningFormat*> ChooseReasoningFormat(absl::string_view flag,
                                                             absl::string_view source);

// In which form a template takes the "arguments" of a call: most templates write an object as JSON or walk
// through the object; some join the text to their own. Found out by two renders.
enum class ArgumentsForm { kObject, kString };
ArgumentsForm ArgumentsFormOf(const ChatTemplate& chat_template);

}  // namespace somnus
