#pragma once
// The tokenizer of a Hugging Face directory: tokenizer.json (or vocab.json + merges.txt, or tokenizer.model,
// see hf_tokenizer_class.h) with tokenizer_config.json, special_tokens_map.json and chat_template.jinja.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/tokenizer_data.h"

namespace somnus {

// NotFound when the directory has no tokenizer, Unimplemented when the tokenizer is of an unknown kind.
// Reads nothing.
absl::Status FindHfTokenizer(const std::string& directory);

// The errors of FindHfTokenizer; InvalidArgument when a file is damaged; Unimplemented for a model other than
// BPE, a step that TokenizerData cannot express, or an unknown tokenizer_class. Errors name file and key.
absl::StatusOr<TokenizerData> ReadHfTokenizer(const std::string& directory);

// The parts: each function reads one file's text and adds to `data`; `file` is the file's name for messages.
absl::Status ParseTokenizerJson(const std::string& file, absl::string_view text, TokenizerData* data);
// `prevails`: added tokens of this file replace earlier tokens of the same id.
absl::Status ParseTokenizerConfig(const std::string& file, absl::string_view text, bool prevails,
                                  TokenizerData* data);
absl::Status ParseVocabJson(const std::string& file, absl::string_view text, TokenizerData* data);
absl::Status ParseMergesText(const std::string& file, absl::string_view text, TokenizerData* data);

}  // namespace somnus
