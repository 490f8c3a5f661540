#pragma once
// Finds every way in which a vocabulary's tokens can spell a word, as a BadText.
//
// Tokens complete a word where they spell the word, and the word begins and ends at the border of a token or
// at a border of words within a token: "cat" is completed by " cat", "(cat)" and "c" "at", and not by the
// token "category". Letters and digits side by side belong to the same word; in scripts without spaces words
// have borders between all characters.
//
// Thread safe. The vocabulary is sorted when the first word is spelled, which takes a part of a second; 8
// bytes are kept for each token and for each border of words within a token.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/call_once.h"
#include "absl/strings/string_view.h"
#include "coordinator/request/request.h"
#include "text/tokenizer/tokenizer.h"

namespace somnus {

class WordSpeller {
 public:
  explicit WordSpeller(std::shared_ptr<const Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}

  // `word` is valid UTF-8 and not empty.
  BadText Spell(absl::string_view word) const;

 private:
  struct Entry {
    int32_t token_id, offset;  // where a word may begin in the token: at 0, or at a border
  };
  using Iterator = std::vector<Entry>::const_iterator;

  absl::string_view TextOf(const Entry& entry) const {
    return absl::string_view(tokenizer_->TokenBytes(entry.token_id)).substr(entry.offset);
  }
  void Sort() const;
  // Adds the pieces that begin at byte `from` of the word.
  void AddPieces(absl::string_view word, int32_t from, std::vector<BadText::Piece>* pieces) const;

  const std::shared_ptr<const Tokenizer> tokenizer_;
  mutable absl::once_flag once_;
  mutable std::vector<Entry> entries_;  // sorted by TextOf, once Sort has run
};

// Whether a word may begin or end before byte `at` of `text`, with 0 < `at` < text.size().
bool IsWordBorder(absl::string_view text, size_t at);

}  // namespace somnus
