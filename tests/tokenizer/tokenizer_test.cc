#include "text/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "text/tokenizer/unicode.h"

namespace somnus {
namespace {

using Ids = std::vector<int32_t>;
using Kind = PreTokenizerStep::Kind;

PreTokenizerStep ByteLevel(bool use_regex, bool prefix_space = false) {
  PreTokenizerStep step{Kind::kByteLevel};
  step.use_regex = use_regex;
  step.add_prefix_space = prefix_space;
  return step;
}

PreTokenizerStep Split(const std::string& pattern, const std::string& behavior, bool regex = true) {
  PreTokenizerStep step{Kind::kSplit};
  step.pattern = pattern;
  step.behavior = behavior;
  step.pattern_is_regex = regex;
  return step;
}

// Ids 0..255 are the bytes; merges and their tokens follow.
TokenizerData ByteData(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  TokenizerData data;
  for (int b = 0; b < 256; ++b) data.tokens.push_back(ByteToAlphabet(static_cast<uint8_t>(b)));
  for (const auto& [left, right] : merges) data.tokens.push_back(left + right);
  data.merges = merges;
  data.pre_tokenizer = {ByteLevel(true)};
  return data;
}

std::unique_ptr<Tokenizer> Make(TokenizerData data) {
  auto tokenizer = Tokenizer::Create(std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return std::move(*tokenizer);
}

AddedToken Added(int32_t id, const std::string& content, bool special = true) {
  AddedToken token{id, content};
  token.special = special;
  return token;
}

// Shows the pieces of a pre-tokenizer: each piece becomes one token, because the vocabulary holds the pieces
// that the test expects.
Ids EncodePieces(std::vector<PreTokenizerStep> steps, const std::vector<std::string>& vocabulary,
                 const std::string& text) {
  TokenizerData data{.tokens = vocabulary, .pre_tokenizer = std::move(steps), .ignore_merges = true};
  return Make(std::move(data))->Encode(text, false);
}

TEST(TokenizerTest, MergesByRankThenLeftmost) {
  auto tokenizer = Make(ByteData({{"b", "c"}, {"a", "b"}, {"a", "bc"}}));
  EXPECT_EQ(tokenizer->Encode("abc", false), (Ids{258}));  // bc first, then a+bc
  EXPECT_EQ(tokenizer->Encode("ab", false), (Ids{257}));
  EXPECT_EQ(tokenizer->Encode("abab", false), (Ids{257, 257}));
  auto overlapping = Make(ByteData({{"a", "a"}}));
  EXPECT_EQ(overlapping->Encode("aaa", false), (Ids{256, 'a'}));  // the left pair wins
}

TEST(TokenizerTest, LongAndShortWordsMergeAlike) {
  auto tokenizer = Make(ByteData({{"a", "a"}, {"aa", "aa"}, {"aa", "b"}, {"b", "b"}}));
  std::string word;
  for (int i = 0; i < 400; ++i) word += i % 7 == 3 ? "b" : "a";
  // A repeated pattern of 7 bytes gives the same tokens in a word of any length, except near its ends.
  const Ids whole = tokenizer->Encode(word, false);
  std::string decoded = tokenizer->Decode(whole, false);
  EXPECT_EQ(decoded, word);
  const Ids shorter = tokenizer->Encode(word.substr(0, 42), false);
  for (size_t i = 0; i + 2 < shorter.size(); ++i) EXPECT_EQ(whole[i], shorter[i]) << i;
}

TEST(TokenizerTest, Gpt2PatternKeepsWordsApart) {
  auto tokenizer = Make(ByteData({{"Ġ", "a"}, {"a", "Ġ"}, {"'", "s"}, {"s", "'"}}));
  EXPECT_EQ(tokenizer->Encode("a a", false), (Ids{'a', 256}));
  EXPECT_EQ(tokenizer->Encode("s's", false), (Ids{'s', 258}));
}

TEST(TokenizerTest, AddedTokensLongestMatchWins) {
  TokenizerData data = ByteData();
  data.added_tokens = {Added(300, "<|a|>"), Added(301, "<|a|><|b|>"), Added(302, "<|b|>")};
  auto tokenizer = Make(std::move(data));
  EXPECT_EQ(tokenizer->Encode("<|a|><|b|>", false), (Ids{301}));
  EXPECT_EQ(tokenizer->Encode("x<|a|>y<|b|>", false), (Ids{'x', 300, 'y', 302}));
  EXPECT_EQ(tokenizer->Encode("<|a|", false), (Ids{'<', '|', 'a', '|'}));
  EXPECT_EQ(tokenizer->vocab_size(), 303);
  EXPECT_TRUE(tokenizer->IsSpecial(300));
  EXPECT_EQ(tokenizer->TokenString(301), "<|a|><|b|>");
}

TEST(TokenizerTest, AddedTokensStripAndSingleWord) {
  TokenizerData data = ByteData();
  data.added_tokens = {Added(300, "<L>"), Added(301, "<R>"), Added(302, "word")};
  data.added_tokens[0].lstrip = true;
  data.added_tokens[1].rstrip = true;
  data.added_tokens[2].single_word = true;
  auto tokenizer = Make(std::move(data));
  EXPECT_EQ(tokenizer->Encode("a \n<L> b", false), (Ids{'a', 300, ' ', 'b'}));
  EXPECT_EQ(tokenizer->Encode("a <R> \tb", false), (Ids{'a', ' ', 301, 'b'}));
  EXPECT_EQ(tokenizer->Encode("<R>  <L>", false), (Ids{301, 300}));
  EXPECT_EQ(tokenizer->Encode("a word.", false), (Ids{'a', ' ', 302, '.'}));
  EXPECT_EQ(tokenizer->Encode("sword", false), (Ids{'s', 'w', 'o', 'r', 'd'}));
  EXPECT_EQ(tokenizer->Encode("words", false), (Ids{'w', 'o', 'r', 'd', 's'}));
}

TEST(TokenizerTest, NormalizedAddedTokensMatchNormalizedText) {
  TokenizerData data = ByteData();
  data.normalizer = {{NormalizerStep::Kind::kNfc}, {NormalizerStep::Kind::kLowercase}};
  data.added_tokens = {Added(300, "E\u0301"), Added(301, "<RAW>")};
  data.added_tokens[0].normalized = true;
  auto tokenizer = Make(std::move(data));
  EXPECT_EQ(tokenizer->Encode("x\u00c9y", false), (Ids{'x', 300, 'y'}));
  EXPECT_EQ(tokenizer->Encode("<RAW><raw>", false), (Ids{301, '<', 'r', 'a', 'w', '>'}));
}

TEST(TokenizerTest, NfcComposesAndSortsMarks) {
  TokenizerData data = ByteData();
  data.normalizer = {{NormalizerStep::Kind::kNfc}};
  auto tokenizer = Make(std::move(data));
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("e\u0301", false), false), "\u00e9");
  // More marks than the direct path handles, in the wrong order.
  std::string marks, sorted;
  for (int i = 0; i < 100; ++i) marks += "\u0301\u0323";
  for (int i = 0; i < 99; ++i) sorted += "\u0323";
  for (int i = 0; i < 100; ++i) sorted += "\u0301";
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("a" + marks, false), false), "\u1ea1" + sorted);
}

TEST(TokenizerTest, SplitBehaviors) {
  const std::vector<std::string> vocabulary = {"a", "b", "-", "--", "a-", "b-", "-b", "--b", "c"};
  const auto encode = [&](const std::string& behavior, const std::string& text) {
    return EncodePieces({Split("-", behavior, false)}, vocabulary, text);
  };
  EXPECT_EQ(encode("Isolated", "a--b"), (Ids{0, 2, 2, 1}));
  EXPECT_EQ(encode("Removed", "a--b"), (Ids{0, 1}));
  EXPECT_EQ(encode("Contiguous", "a--b"), (Ids{0, 3, 1}));
  EXPECT_EQ(encode("MergedWithPrevious", "a-b-c"), (Ids{4, 5, 8}));
  EXPECT_EQ(encode("MergedWithNext", "a-b"), (Ids{0, 6}));
}

TEST(TokenizerTest, InvertedSplitAndOtherSteps) {
  PreTokenizerStep inverted = Split("[a-z]+", "Removed");
  inverted.invert = true;
  EXPECT_EQ(EncodePieces({inverted}, {"ab", "c"}, "ab 12 c"), (Ids{0, 1}));
  PreTokenizerStep digits{Kind::kDigits};
  EXPECT_EQ(EncodePieces({digits}, {"x", "12", "1", "2"}, "x12"), (Ids{0, 1}));
  digits.individual_digits = true;
  EXPECT_EQ(EncodePieces({digits}, {"x", "12", "1", "2"}, "x12"), (Ids{0, 2, 3}));
  EXPECT_EQ(EncodePieces({PreTokenizerStep{Kind::kWhitespaceSplit}}, {"x", "yz"}, " x\u3000yz\n"),
            (Ids{0, 1}));
  EXPECT_EQ(EncodePieces({PreTokenizerStep{Kind::kPunctuation}}, {"x", "!", "\u00bf"}, "x!\u00bf"),
            (Ids{0, 1, 2}));
}

TEST(TokenizerTest, ByteLevelPrefixSpaceAndMiddlePosition) {
  TokenizerData data = ByteData();
  data.pre_tokenizer = {ByteLevel(true, true)};
  EXPECT_EQ(Make(data)->Encode("a", false), (Ids{' ', 'a'}));
  EXPECT_EQ(Make(data)->Encode(" a", false), (Ids{' ', 'a'}));
  // Mapped bytes pass through a later step: "é" is two alphabet characters by then.
  data.pre_tokenizer = {ByteLevel(false), Split("\u00a9", "Removed", false)};
  EXPECT_EQ(Make(data)->Encode("\u00e9", false), (Ids{0xC3}));
}

TEST(TokenizerTest, IgnoreMergesTakesWholePieces) {
  TokenizerData data = ByteData({{"a", "b"}});
  data.tokens.push_back("abc");
  EXPECT_EQ(Make(data)->Encode("abc", false), (Ids{256, 'c'}));
  data.ignore_merges = true;
  EXPECT_EQ(Make(data)->Encode("abc", false), (Ids{257}));
}

TEST(TokenizerTest, UnknownCharacters) {
  TokenizerData data;
  data.tokens = {"a", "b", "ab", "<unk>"};
  data.merges = {{"a", "b"}};
  data.pre_tokenizer = {PreTokenizerStep{Kind::kWhitespaceSplit}};
  EXPECT_EQ(Make(data)->Encode("axb", false), (Ids{2}));  // x is dropped, so a and b merge
  data.unk_token = "<unk>";
  EXPECT_EQ(Make(data)->Encode("axb", false), (Ids{0, 3, 1}));
  EXPECT_EQ(Make(data)->Encode("axyb", false), (Ids{0, 3, 3, 1}));
  data.fuse_unk = true;
  EXPECT_EQ(Make(data)->Encode("axyb z", false), (Ids{0, 3, 1, 3}));
  data.fuse_unk = false;
  data.byte_fallback = true;
  for (int b = 0; b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", b);
    data.tokens.push_back(name);
  }
  auto tokenizer = Make(data);
  EXPECT_EQ(tokenizer->Encode("a\u00e9", false), (Ids{0, 4 + 0xC3, 4 + 0xA9}));
  EXPECT_EQ(tokenizer->Decode(Ids{0, 4 + 0xC3, 4 + 0xA9}, false), "a\u00e9");
}

TEST(TokenizerTest, PostProcessorOnlyOnRequest) {
  TokenizerData data = ByteData();
  data.post_processor.prefix_ids = {7};
  data.post_processor.suffix_ids = {8, 9};
  auto tokenizer = Make(std::move(data));
  EXPECT_EQ(tokenizer->Encode("a", false), (Ids{'a'}));
  EXPECT_EQ(tokenizer->Encode("a", true), (Ids{7, 'a', 8, 9}));
  EXPECT_EQ(tokenizer->Encode("", true), (Ids{7, 8, 9}));
}

TEST(TokenizerTest, ContradictoryDataIsRefused) {
  TokenizerData data = ByteData({{"a", "b"}});
  data.merges.emplace_back("zz", "a");
  EXPECT_EQ(Tokenizer::Create(data).status().code(), absl::StatusCode::kInvalidArgument);
  data = ByteData();
  data.pre_tokenizer = {Split("(", "Isolated")};
  EXPECT_EQ(Tokenizer::Create(data).status().code(), absl::StatusCode::kInvalidArgument);
  data.pre_tokenizer = {Split("[a&&b]", "Isolated")};
  EXPECT_EQ(Tokenizer::Create(data).status().code(), absl::StatusCode::kInvalidArgument);
  data.pre_tokenizer = {Split("a", "Sideways")};
  EXPECT_EQ(Tokenizer::Create(data).status().code(), absl::StatusCode::kInvalidArgument);
  data = ByteData();
  data.unk_token = "nope";
  EXPECT_EQ(Tokenizer::Create(data).status().code(), absl::StatusCode::kInvalidArgument);
  data = ByteData();
  data.added_tokens = {Added(-1, "x")};
  EXPECT_EQ(Tokenizer::Create(data).status().code(), absl::StatusCode::kInvalidArgument);
  data.added_tokens = {Added(2'000'000'000, "x")};
  EXPECT_EQ(Tokenizer::Create(data).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TokenizerTest, InvalidUtf8IsReplacedAsPythonDoes) {
  // bytes.decode("utf-8", "replace") of each, from CPython.
  const std::pair<std::string, std::string> cases[] = {
      {"a\xff"
       "b",
       "a\ufffd"
       "b"},
      {"\xe4\xbd", "\ufffd"},
      {"\xe4\xbd"
       "a",
       "\ufffd"
       "a"},
      {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
      {"\xf0\x80\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
      {"\xf0\x9f\x98", "\ufffd"},
      {"\xf0\x9f\x98\xf0\x9f\x98\x80", "\ufffd\U0001f600"},
      {"\xc0\xaf", "\ufffd\ufffd"},
      {"\xf5\x80", "\ufffd\ufffd"},
      {"\x80\x80", "\ufffd\ufffd"},
  };
  auto tokenizer = Make(ByteData());
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(ReplaceInvalidUtf8(bytes), text);
    Ids ids;
    for (const char c : bytes) ids.push_back(static_cast<unsigned char>(c));
    EXPECT_EQ(tokenizer->Decode(ids, false), text);
    EXPECT_EQ(tokenizer->Encode(bytes, false), tokenizer->Encode(text, false));
  }
}

TEST(TokenizerTest, StrangeIdsDecodeToNothing) {
  auto tokenizer = Make(ByteData());
  EXPECT_EQ(tokenizer->Decode(Ids{-1, 'a', 256, 1 << 30, 'b'}, false), "ab");
  EXPECT_EQ(tokenizer->TokenBytes(-5), "");
  EXPECT_EQ(tokenizer->TokenString(999999), "");
  EXPECT_FALSE(tokenizer->IsSpecial(999999));
}

TEST(TokenizerTest, SpecialTokensAreSkippedOnRequest) {
  TokenizerData data = ByteData();
  data.added_tokens = {Added(300, "<s>"), Added(301, "<think>", false)};
  auto tokenizer = Make(std::move(data));
  EXPECT_EQ(tokenizer->Decode(Ids{300, 'a', 301}, true), "a<think>");
  EXPECT_EQ(tokenizer->Decode(Ids{300, 'a', 301}, false), "<s>a<think>");
}

TEST(IncrementalDetokenizerTest, NeverHalfACharacter) {
  TokenizerData data = ByteData();
  data.added_tokens = {Added(300, "<s>")};
  auto tokenizer = Make(std::move(data));
  IncrementalDetokenizer stream(tokenizer.get(), true);
  EXPECT_EQ(stream.Append(0xF0), "");
  EXPECT_EQ(stream.Append(0x9F), "");
  EXPECT_EQ(stream.Append(300), "");  // skipped; the character continues after it
  EXPECT_EQ(stream.Append(0x98), "");
  EXPECT_EQ(stream.Append(0x80), "\U0001f600");
  EXPECT_EQ(stream.Append(0xE4), "");
  EXPECT_EQ(stream.Append('x'), "\ufffdx");  // the character cannot become complete any more
  EXPECT_EQ(stream.Append(0xE4), "");
  EXPECT_EQ(stream.Flush(), "\ufffd");
  EXPECT_EQ(stream.Flush(), "");
}

// Ids 0..255 are bytes; " a", "a" and " " follow; 300 is a special token.
TokenizerData PiecesData() {
  using Step = DecoderStep::Kind;
  TokenizerData data;
  for (int b = 0; b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", b);
    data.tokens.push_back(name);
  }
  data.tokens.insert(data.tokens.end(), {"\u2581a", "a", "\u2581"});
  data.added_tokens = {Added(300, "<s>")};
  data.byte_fallback = true;
  data.decoder = {
      {Step::kReplace, "\u2581", " "}, {Step::kByteFallback}, {Step::kFuse}, {Step::kStrip, "", " ", 1}};
  return data;
}

TEST(IncrementalDetokenizerTest, OnlyTheStartOfATextLosesItsSpace) {
  auto tokenizer = Make(PiecesData());
  EXPECT_EQ(tokenizer->Decode(Ids{256, 256, 258}, true), "a a ");
  EXPECT_EQ(tokenizer->Decode(Ids{300, 256, 256}, true), "a a");
  EXPECT_EQ(tokenizer->Decode(Ids{300, 256, 256}, false), "<s> a a");
  EXPECT_EQ(tokenizer->Decode(Ids{258, 256}, true), " a");  // the text loses only its first space
  EXPECT_EQ(tokenizer->Decode(Ids{' ', 257}, true), "a");
  EXPECT_EQ(tokenizer->TokenBytes(256), " a");
  IncrementalDetokenizer start(tokenizer.get(), true), middle(tokenizer.get(), true, /*at_start=*/false);
  EXPECT_EQ(start.Append(256), "a");
  EXPECT_EQ(start.Append(256), " a");
  EXPECT_EQ(middle.Append(256), " a");
  EXPECT_FALSE(BeginsText(*tokenizer, Ids{300, 256}, true));
  EXPECT_FALSE(BeginsText(*tokenizer, Ids{300}, false));
  EXPECT_TRUE(BeginsText(*tokenizer, Ids{300}, true));
  EXPECT_TRUE(BeginsText(*tokenizer, Ids{}, false));
  EXPECT_FALSE(BeginsText(*Make(ByteData()), Ids{}, false));  // the start makes no difference
}

// SentencePiece decodes bytes alike, as does `tokenizers` where no part of a run makes a character.
TEST(IncrementalDetokenizerTest, FallbackBytesJoinIntoCharacters) {
  auto tokenizer = Make(PiecesData());
  IncrementalDetokenizer stream(tokenizer.get(), true);
  EXPECT_EQ(stream.Append(0xF0), "");
  EXPECT_EQ(stream.Append(0x9F), "");
  EXPECT_EQ(stream.Append(0x98), "");
  EXPECT_EQ(stream.Append(0x80), "\U0001f600");
  EXPECT_EQ(stream.Append(0xE4), "");
  EXPECT_EQ(stream.Append(0xBD), "");
  EXPECT_EQ(stream.Append(257), "\ufffd\ufffda");
  EXPECT_EQ(stream.Append(0xF0), "");
  EXPECT_EQ(stream.Append(0x9F), "");
  EXPECT_EQ(stream.Flush(), "\ufffd\ufffd");
  EXPECT_EQ(stream.Flush(), "");
}

TEST(TokenizerTest, DecodersThatLookAcrossTokensAreRefused) {
  using Step = DecoderStep::Kind;
  for (const std::vector<DecoderStep>& decoder : std::vector<std::vector<DecoderStep>>{
           {{Step::kFuse}, {Step::kReplace, "a", "b"}},
           {{Step::kByteFallback}, {Step::kReplace, "a", "b"}},
           {{Step::kFuse}, {Step::kStrip, "", " ", 1}, {Step::kStrip, "", "a", 1}}}) {
    TokenizerData data = PiecesData();
    data.decoder = decoder;
    EXPECT_EQ(Tokenizer::Create(std::move(data)).status().code(), absl::StatusCode::kUnimplemented);
  }
}

TEST(TokenizerTest, MergesByScore) {
  TokenizerData data{.tokens = {"a", "b", "c", "ab", "bc", "abc", "aa"}};
  const float none = std::nanf("");
  data.merge_scores = {none, none, none, -2, -1, -3, -1};
  auto tokenizer = Make(data);
  EXPECT_EQ(tokenizer->Encode("abc", false), (Ids{5}));  // bc, then a + bc
  EXPECT_EQ(tokenizer->Encode("aaa", false), (Ids{6, 0}));
  EXPECT_EQ(tokenizer->Encode("aabc", false), (Ids{6, 4}));  // equal scores: from the left
  data.merge_scores[5] = none;
  EXPECT_EQ(Make(data)->Encode("abc", false), (Ids{0, 4}));
  data.merge_scores.pop_back();
  EXPECT_EQ(Tokenizer::Create(data).status().code(), absl::StatusCode::kInvalidArgument);
  data.tokens.back() = std::string(600, 'x');
  data.merge_scores.push_back(0);
  EXPECT_EQ(Tokenizer::Create(data).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace somnus
