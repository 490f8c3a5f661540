#pragma once
// Finds every way in which a vocabulary's tokens can spell a word, as a BadText.
//
// A word is completed where its bytes stand in the text as tokens that begin and end with it, or between
// characters that do not belong to it: "cat" is completed by " cat", "(cat)" and "c" "at", and not by the
// token "category". A letter or a digit belongs to a word that has one beside it; in scripts without spaces
// none does.
//
// Thread safe. The vocabulary is sorted when the first word is spelled, which takes a part of a second, and 8
// bytes for each token and each border of words within one are kept.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/call_once.h"
#include "absl/strings/string_view.h"
#include "coordinator/request/request.h"
#include "coordinator/tokenizer/tokenizer.h"

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

// Whether a word may begin or end before byte `at` of `text`, which is neither its start nor its end.
bool IsWordBorder(absl::string_view text, size_t at);

}  // namespace somnus
