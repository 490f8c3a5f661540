#pragma once
// tokenizer.model: SentencePiece's ModelProto (sentencepiece_model.proto of google/sentencepiece). Only the
// fields that matter for encoding are read.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/tokenizer/sentence_pieces.h"

namespace somnus {

struct SentencePieceModel {
  enum class Algorithm : uint64_t { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };

  SentencePieces vocabulary;
  // trainer_spec
  Algorithm algorithm = Algorithm::kUnigram;
  bool byte_fallback = false, space_is_suffix = false;
  // normalizer_spec
  bool normalizes_characters = false;  // by a table, e.g. of NFKC
  bool add_dummy_prefix = true, remove_extra_spaces = true, escape_spaces = true;
};

// InvalidArgument when `bytes` are not such a message or a piece is no UTF-8 text; the error names `file`.
absl::StatusOr<SentencePieceModel> ParseSentencePieceModel(const std::string& file, absl::string_view bytes);

}  // namespace somnus
