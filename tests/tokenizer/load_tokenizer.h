#pragma once
// Reads TokenizerData from a directory with tokenizer.json, for tests. LoadTokenizerData does not use the
// checkpoint's reader, so that a bug there and a bug in the tokenizer cannot hide each other.

#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/tokenizer_data.h"

namespace somnus {

absl::StatusOr<TokenizerData> LoadTokenizerData(const std::string& directory);
// Returns the chat template of the directory: chat_template.jinja, or the template of tokenizer_config.json;
// empty when there is no template.
std::string LoadChatTemplate(const std::string& directory);

}  // namespace somnus
