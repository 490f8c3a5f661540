// Every spelling of a word with a vocabulary's tokens, compared with a search in the tokens' text.

#include "coordinator/openai/word_speller.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/api/byte_tokenizer.h"

namespace somnus {
namespace {

// A tokenizer with any texts as tokens.
class ListTokenizer : public ByteTokenizer {
 public:
  explicit ListTokenizer(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}
  const std::string& TokenBytes(int32_t id) const override { return tokens_[id]; }
  int32_t vocab_size() const override { return static_cast<int32_t>(tokens_.size()); }

 private:
  const std::vector<std::string> tokens_;
};

BadText Spell(const std::vector<std::string>& tokens, absl::string_view word) {
  return WordSpeller(std::make_shared<ListTokenizer>(tokens)).Spell(word);
}

// The pieces of a word as "token from-to", ordered.
std::set<std::string> Pieces(const std::vector<std::string>& tokens, absl::string_view word) {
  std::set<std::string> pieces;
  for (const BadText::Piece& piece : Spell(tokens, word).pieces)
    pieces.insert(absl::StrCat(tokens[piece.token_id], " ", piece.from, "-", piece.to));
  return pieces;
}

TEST(WordSpellerTest, PiecesOfAWord) {
  EXPECT_EQ(Pieces({"cat", " cat", "c", "at", " c", "a", "t", "t.", "ts", "(ca", "category", "x cat!", "scat",
                    "", "tc"},
                   "cat"),
            (std::set<std::string>{"cat 0-3", " cat 0-3", "c 0-1", "at 1-3", " c 0-1", "a 1-2", "t 2-3",
                                   "t. 2-3", "(ca 0-2", "x cat! 0-3"}));
}

TEST(WordSpellerTest, ALetterThatRepeatsHasSeveralPlaces) {
  EXPECT_EQ(Pieces({"a", "aa", " a"}, "aaa"),
            (std::set<std::string>{"a 0-1", "a 1-2", "a 2-3", "aa 0-2", "aa 1-3", " a 0-1"}));
}

TEST(WordSpellerTest, BordersOfWords) {
  const auto borders = [](const std::string& text) {
    std::string marked(1, text[0]);
    for (size_t i = 1; i < text.size(); ++i) marked += (IsWordBorder(text, i) ? "|" : "") + text.substr(i, 1);
    return marked;
  };
  EXPECT_EQ(borders("a b"), "a| |b");
  EXPECT_EQ(borders("abc1"), "abc1");
  EXPECT_EQ(borders("a_b"), "a|_|b");
  EXPECT_EQ(borders("\u00e9t\u00e9"), "\u00e9t\u00e9");
  EXPECT_EQ(borders("\u043c\u0438\u0440"), "\u043c\u0438\u0440");
  EXPECT_EQ(borders("\u63cf\u8ff0"), "\u63cf|\u8ff0") << "no spaces between words";
  EXPECT_EQ(borders("a\xe6\x8f"), "a|\xe6\x8f") << "half a character";
}

// Follows pieces as a worker does, from the definition: sets of prefixes.
bool Completes(const BadText& text, const std::vector<int32_t>& tokens) {
  std::set<int32_t> now = {0};
  for (const int32_t token : tokens) {
    std::set<int32_t> next = {0};
    for (const BadText::Piece& piece : text.pieces) {
      if (piece.token_id == token && now.contains(piece.from)) next.insert(piece.to);
    }
    if (next.contains(text.num_bytes)) return true;
    now = std::move(next);
  }
  return false;
}

// Whether the word stands in the tokens' text: each end of the word is the end of a token, or a word border.
bool Stands(const std::vector<std::string>& vocabulary, const std::vector<int32_t>& tokens,
            const std::string& word) {
  std::string text;
  std::set<size_t> ends = {0};
  for (const int32_t token : tokens) {
    text += vocabulary[token];
    ends.insert(text.size());
  }
  const auto is_end = [&](size_t at) { return ends.contains(at) || IsWordBorder(text, at); };
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    if (is_end(at) && is_end(at + word.size())) return true;
  }
  return false;
}

TEST(WordSpellerTest, WhatPiecesCompleteIsWhatStandsInTheText) {
  std::mt19937 random(7);
  const char* letters[] = {"a", "b", " ", ".", "\u00e9", "\u63cf"};
  const auto text = [&](int most) {
    std::string out;
    for (int i = 1 + static_cast<int>(random() % most); i > 0; --i) out += letters[random() % 6];
    return out;
  };
  int found = 0;
  for (int round = 0; round < 300; ++round) {
    std::set<std::string> some;
    for (int i = 0; i < 25; ++i) some.insert(text(4));
    for (const char c : {'\xc3', '\xa9', '\xe6', '\x8f'}) some.insert(std::string(1, c));
    const std::vector<std::string> vocabulary(some.begin(), some.end());
    std::string word = text(4);
    if (word.front() == ' ' || word.back() == ' ') continue;
    const BadText spelled = Spell(vocabulary, word);
    for (int i = 0; i < 50; ++i) {
      std::vector<int32_t> tokens(1 + random() % 6);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocabulary.size());
      const bool stands = Stands(vocabulary, tokens, word);
      EXPECT_EQ(Completes(spelled, tokens), stands) << word;
      if (stands) ++found;
    }
  }
  EXPECT_GT(found, 500);
}

}  // namespace
}  // namespace somnus
