#pragma once
// The vocabulary of a SentencePiece tokenizer, as tokenizer.model and GGUF files hold it.

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/tokenizer_data.h"

namespace somnus {

// The types of pieces, with the numbers that both formats use.
enum class PieceType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct SentencePieces {
  std::vector<std::string> pieces;  // by id
  std::vector<float> scores;        // as many
  std::vector<PieceType> types;     // as many
};

struct SentencePieceSpaces {
  bool prefix = true;            // a text begins with a space that is not written
  bool after_each_token = true;  // so does what follows an added token
  bool remove_extra = false;     // of spaces in a row one stays, and none at the ends
};

// Sets everything of a BPE tokenizer but the special tokens' names and what the post-processor adds. Control,
// unknown and user-defined pieces become added tokens; unused ones match nothing.
void FillFromSentencePieces(SentencePieces pieces, const SentencePieceSpaces& spaces, TokenizerData* data);

}  // namespace somnus
