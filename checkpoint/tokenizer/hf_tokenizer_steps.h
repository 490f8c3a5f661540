#pragma once
// The small parts of tokenizer.json: the steps before and after the BPE model. `raw` is the JSON text of one
// value of the file; errors name file and key. Include from .cc files only.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "checkpoint/json_file.h"
#include "checkpoint/tokenizer_data.h"

namespace somnus {

// An added token's text and options from the token's object in tokenizer.json or tokenizer_config.json;
// errors stay in `fields`.
AddedToken ReadAddedToken(int32_t id, JsonFields* fields);

absl::Status ParseAddedTokens(const std::string& file, absl::string_view raw, TokenizerData* data);
absl::Status ParseNormalizer(const std::string& file, absl::string_view raw, TokenizerData* data);
absl::Status ParsePreTokenizer(const std::string& file, absl::string_view raw, TokenizerData* data);
absl::Status ParseDecoder(const std::string& file, absl::string_view raw, TokenizerData* data);
absl::Status ParsePostProcessor(const std::string& file, absl::string_view raw, TokenizerData* data);

// InvalidArgument unless `id` can belong to a token beside the vocabulary read so far: consumers keep tables
// by id, so a single absurd id must not make them huge.
absl::Status CheckAddedTokenId(const std::string& file, int64_t id, const TokenizerData& data);

}  // namespace somnus
