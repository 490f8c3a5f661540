#pragma once
// The grammar of calls that a request forces: `tool_choice` "required" or a named tool, and tools with
// `strict`. Pure functions; thread safe.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "text/tools/tool_format.h"
#include "text/tools/tool_schemas.h"

namespace somnus {

struct ForcedChoice {
  enum class Kind {
    kAuto,      // free text, in which calls fit the schemas of strict tools
    kRequired,  // at least one call, and no text
    kNamed,     // one call of the tool `name`
  };
  Kind kind = Kind::kAuto;
  std::string name;
  bool is_parallel = true;  // more than one call may come
};

// Returns a structural tag in xgrammar's JSON form ({"type": "structural_tag", "format": ...}) that lets the
// model write calls of the format alone, with arguments that fit the tool's schema; with kAuto the text is
// free up to a call. InvalidArgument: the choice names no tool of the request, or there is no tool.
// Unimplemented: no structural tag expresses the format's arguments; ForcedJsonFormat() is the way to force
// calls then.
absl::StatusOr<nlohmann::ordered_json> ForcedCallsTag(const ToolFormat& format,
                                                      const std::vector<ToolSpec>& tools,
                                                      const ForcedChoice& choice);

}  // namespace somnus
