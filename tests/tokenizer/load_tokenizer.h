#pragma once
// TokenizerData from a directory with tokenizer.json, for tests. It reads the files by itself, so that a bug
// in the checkpoint's reader and one in the tokenizer cannot hide each other.

#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/tokenizer_data.h"

namespace somnus {

absl::StatusOr<TokenizerData> LoadTokenizerData(const std::string& directory);
// The chat template of the directory: chat_template.jinja, or tokenizer_config.json's; empty when there is
// none.
std::string LoadChatTemplate(const std::string& directory);

}  // namespace somnus
