#pragma once
// Finds added tokens (special or not) in text: the leftmost, and of those the longest, as Hugging Face does.
// From each position the search walks down a trie, at most to the length of the longest token: its time is
// linear in the text. Thread safe once all tokens have been added.

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "checkpoint/tokenizer_data.h"

namespace somnus {

// A part of the text: a token when id >= 0, plain text otherwise.
struct TextSegment {
  int32_t id;
  absl::string_view text;
};

class AddedTokenMatcher {
 public:
  // Adds a token under the spelling to search for; an empty spelling is ignored.
  void Add(const AddedToken& token, absl::string_view spelling);
  bool empty() const { return tokens_.empty(); }

  // Appends the segments of `text` in order; views point into `text`.
  void Split(absl::string_view text, std::vector<TextSegment>* out) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, int32_t>> children;
    int32_t token = -1;  // index into tokens_
  };
  struct Token {
    int32_t id;
    bool lstrip, rstrip, single_word;
  };
  int32_t Child(int32_t node, unsigned char byte) const;
  // Returns the index of the longest token that starts at `pos`, or -1; `*length` is its size in bytes.
  int32_t LongestAt(absl::string_view text, size_t pos, size_t* length) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<Token> tokens_;
  std::array<bool, 256> first_{};
};

}  // namespace somnus
