#pragma once
// Chat templates: the subset of Jinja2 that Hugging Face templates use, rendered as by transformers
// (trim_blocks, lstrip_blocks, tojson without HTML escaping, raise_exception, strftime_now, loop controls,
// namespace, macros, slices, filters, tests, string/list/dict methods). Untrusted templates and messages
// cannot hang or exhaust the process: steps, depth and output are limited. Immutable after Compile; thread
// safe.

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace somnus {

struct ChatTemplateLimits {
  int64_t max_steps = 2'000'000;
  int max_depth = 200;  // nesting of expressions, blocks and macro calls
  int64_t max_output_bytes = 16 << 20;
  int64_t max_template_bytes = 1 << 20;
};

class ChatTemplate {
 public:
  // Parses a template. InvalidArgument gives line and reason of a syntax error.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Compile(const std::string& source,
                                                               const ChatTemplateLimits& limits = {});
  virtual ~ChatTemplate() = default;

  // Returns the text of one render. `context` is an object whose keys are the template's variables (messages,
  // tools, add_generation_prompt, bos_token, ...), and the order of keys matters. InvalidArgument: the
  // template raised an exception, used an undefined value, or has a type error. ResourceExhausted: the render
  // went over a limit.
  virtual absl::StatusOr<std::string> Render(const nlohmann::ordered_json& context) const = 0;
  // The source given to Compile.
  virtual const std::string& source() const = 0;
};

}  // namespace somnus
