#pragma once
// What turns a served model's text into tokens and back: made of its checkpoint while its workers load.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"
#include "coordinator/api/served_model.h"
#include "coordinator/jinja/chat_template.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace somnus {

struct TextParts {
  std::shared_ptr<const Tokenizer> tokenizer;
  ModelTemplates templates;
  // The tokens that end an answer, all of the vocabulary: those that the model's configuration names, and
  // those that its tokenizer does.
  std::vector<int32_t> eos_token_ids;
};

// Reads the tokenizer and compiles the chat templates; logs what was put right in the files. A template that
// cannot be compiled is no error: chat requests are answered with the reason. `path` begins each error.
absl::StatusOr<TextParts> ReadTextParts(const Checkpoint& checkpoint, const std::string& path);

}  // namespace somnus
