#pragma once
// The vocabulary of a SentencePiece tokenizer, as stored in tokenizer.model and in GGUF files.

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/tokenizer_data.h"

namespace somnus {

// The types of pieces, with the numbers of tokenizer.model and of GGUF files.
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
  bool after_each_token = true;  // and so does the text after an added token
  bool remove_extra = false;     // spaces in a row become a single space; spaces at the ends are removed
};

// Sets all parts of a BPE tokenizer but the names of special tokens and the post-processor. Control, unknown
// and user-defined pieces become added tokens; unused pieces match nothing.
void FillFromSentencePieces(SentencePieces pieces, const SentencePieceSpaces& spaces, TokenizerData* data);

}  // namespace somnus
