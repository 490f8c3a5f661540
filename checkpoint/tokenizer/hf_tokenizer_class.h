#pragma once
// A directory without tokenizer.json holds a vocabulary (vocab.json with merges.txt, or tokenizer.model), and
// names a tokenizer class, which defines how text is cut and which tokens go around a text.

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/tokenizer_data.h"

namespace somnus {

struct TokenizerClassRule;

class HfTokenizerClass {
 public:
  // Reads tokenizer_class of tokenizer_config.json or of config.json, or else takes the class that
  // transformers takes for config.json's model_type. Unimplemented for an unknown class, which the error
  // names, and where neither file leads to a class.
  static absl::StatusOr<HfTokenizerClass> Read(const std::string& directory);

  // Reads the vocabulary into `data`. NotFound when the class's files are not there.
  absl::Status ReadVocabulary(const std::string& directory, TokenizerData* data) const;
  // Sets the names of special tokens that no file gives.
  void SetDefaultTokens(TokenizerData* data) const;
  // Sets the tokens that go around a text, once all tokens are known.
  void SetPostProcessor(TokenizerData* data) const;

 private:
  // The options of tokenizer_config.json; unset: the class's default.
  struct Options {
    std::optional<bool> add_prefix_space, add_bos, add_eos, legacy;
    std::string cls_token, sep_token;
  };

  absl::Status ReadBytes(const std::string& directory, TokenizerData* data) const;
  absl::Status ReadPieces(const std::string& directory, TokenizerData* data) const;

  const TokenizerClassRule* rule_ = nullptr;
  Options options_;
};

// The id of the token with this text, where added tokens come first; -1: no such token.
int32_t IdOfToken(const TokenizerData& data, absl::string_view token);

}  // namespace somnus
