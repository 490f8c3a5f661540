#pragma once
// Cuts a template into text and tokens, with Jinja's white-space control as set by transformers: trim_blocks,
// lstrip_blocks, no trailing newline.

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace somnus::jinja {

struct Token {
  enum class Kind {
    kText,
    kBlockBegin,
    kBlockEnd,
    kOutputBegin,
    kOutputEnd,
    kName,
    kString,
    kInt,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind;
  std::string text;  // of a string: the value without quotes and escapes
  int line;
};

// InvalidArgument "line N: reason". The result ends in kEnd.
absl::StatusOr<std::vector<Token>> Tokenize(const std::string& source);

}  // namespace somnus::jinja
