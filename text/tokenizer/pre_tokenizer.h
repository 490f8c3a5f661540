#pragma once
// Cuts text into the pieces within which BPE merges. Immutable after Create; thread safe.

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/tokenizer_data.h"
#include "text/tokenizer/regex.h"

namespace somnus {

// The pieces of one text. `arena` owns those that are not substrings of the text (with a prefix space, or of
// mapped bytes).
struct PieceList {
  std::vector<absl::string_view> pieces;
  std::deque<std::string> arena;
};

class PreTokenizer {
 public:
  static absl::StatusOr<std::unique_ptr<PreTokenizer>> Create(const std::vector<PreTokenizerStep>& steps);

  // True when the last step is ByteLevel. Pieces are raw bytes then, and the caller maps each byte to the
  // alphabet when it looks a piece up; that saves writing the mapped text.
  bool byte_pieces() const { return byte_pieces_; }

  // Replaces list->pieces by the pieces of `text` (valid UTF-8). The views are valid as long as `text` and
  // `list`. `at_start`: nothing, not even an added token, goes before `text`.
  void Split(absl::string_view text, bool at_start, PieceList* list) const;

 private:
  struct Step {
    PreTokenizerStep spec;
    std::unique_ptr<Regex> regex;
  };
  void Apply(const Step& step, bool last, bool at_start, absl::string_view piece, PieceList* list) const;

  std::vector<Step> steps_;
  bool byte_pieces_ = false;
};

}  // namespace somnus
