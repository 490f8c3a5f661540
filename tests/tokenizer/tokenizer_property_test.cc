// Properties that hold for every text, and texts that are made to take long.

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_replace.h"
#include "base/utf8.h"
#include "tests/tokenizer/load_tokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace somnus {
namespace {

constexpr char kQwenPattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+";

TokenizerData TinyData() {
  absl::StatusOr<TokenizerData> data = LoadTokenizerData("tests/data/tiny/qwen3");
  EXPECT_TRUE(data.ok()) << data.status();
  return *std::move(data);
}

// A tiny vocabulary with Qwen's pattern.
TokenizerData QwenLikeData() {
  TokenizerData data = TinyData();
  PreTokenizerStep split{PreTokenizerStep::Kind::kSplit};
  split.pattern = kQwenPattern;
  PreTokenizerStep bytes{PreTokenizerStep::Kind::kByteLevel};
  bytes.use_regex = false;
  data.pre_tokenizer = {split, bytes};
  return data;
}

// SentencePiece's kind; `scored`: merges by the scores of tokens, as in tokenizer.model.
TokenizerData PiecesData(bool scored) {
  constexpr char kSpace[] = "\u2581";
  absl::StatusOr<TokenizerData> data = LoadTokenizerData("tests/data/pieces");
  EXPECT_TRUE(data.ok()) << data.status();
  data->normalizer = {{NormalizerStep::Kind::kPrepend, kSpace},
                      {NormalizerStep::Kind::kReplace, kSpace, " "}};
  using Kind = DecoderStep::Kind;
  data->decoder = {
      {Kind::kReplace, kSpace, " "}, {Kind::kByteFallback}, {Kind::kFuse}, {Kind::kStrip, "", " ", 1}};
  if (scored) {
    data->merges.clear();
    for (size_t id = 0; id < data->tokens.size(); ++id) {
      const bool normal = id >= 262;  // bytes, control and user-defined pieces come first
      data->merge_scores.push_back(normal ? -static_cast<float>(id) : std::nanf(""));
    }
  }
  return *std::move(data);
}

std::unique_ptr<Tokenizer> Make(TokenizerData data) {
  auto tokenizer = Tokenizer::Create(std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return std::move(*tokenizer);
}

std::string RandomText(std::mt19937* random) {
  static const char32_t kLimits[] = {0x80, 0x250, 0x3000, 0x10000, 0x110000};
  std::string text;
  const size_t length = (*random)() % 60;
  for (size_t i = 0; i < length; ++i) {
    const char32_t code = (*random)() % kLimits[(*random)() % 5];
    AppendUtf8(code >= 0xD800 && code < 0xE000 ? 'x' : code, &text);
    if ((*random)() % 8 == 0) text += "<|im_start|>";
    if ((*random)() % 4 == 0) text += " the";
  }
  return text;
}

std::string RandomBytes(std::mt19937* random) {
  std::string bytes;
  const size_t length = (*random)() % 60;
  for (size_t i = 0; i < length; ++i) {
    bytes += static_cast<char>((*random)() % 3 == 0 ? 0xE0 + (*random)() % 32 : (*random)() % 256);
  }
  return bytes;
}

TEST(TokenizerPropertyTest, DecodeOfEncodeIsTheText) {
  std::mt19937 random(7);
  for (const TokenizerData& data : {TinyData(), QwenLikeData()}) {
    const auto tokenizer = Make(data);
    for (int i = 0; i < 2000; ++i) {
      const std::string text = RandomText(&random);
      EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, false), false), text);
    }
  }
}

// Streamed text is whole characters, and the text of all ids together.
void ExpectStreamedAsWhole(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip) {
  IncrementalDetokenizer stream(&tokenizer, skip);
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string part = stream.Append(id);
    EXPECT_TRUE(IsUtf8(part));
    streamed += part;
  }
  EXPECT_EQ(streamed + stream.Flush(), tokenizer.Decode(ids, skip));
}

TEST(TokenizerPropertyTest, PiecesLoseNothingButTheirSignOfASpace) {
  std::mt19937 random(17);
  for (const bool scored : {false, true}) {
    const auto tokenizer = Make(PiecesData(scored)), listed = Make(PiecesData(false));
    for (int i = 0; i < 2000; ++i) {
      const std::string text = (i % 5 == 0 ? " " : "") + RandomText(&random);
      const std::vector<int32_t> ids = tokenizer->Encode(text, false);
      EXPECT_EQ(tokenizer->Decode(ids, false), absl::StrReplaceAll(text, {{"\u2581", " "}}));
      EXPECT_EQ(ids, listed->Encode(text, false));
    }
  }
}

TEST(TokenizerPropertyTest, StreamedPiecesAreWholeAndEqual) {
  std::mt19937 random(18);
  const auto tokenizer = Make(PiecesData(false));
  for (int i = 0; i < 4000; ++i) {
    std::vector<int32_t> ids;
    const size_t range = i % 3 == 0 ? 262 : 640;  // often bytes in a row
    for (size_t n = random() % 30; n > 0; --n) ids.push_back(static_cast<int32_t>(random() % range));
    ExpectStreamedAsWhole(*tokenizer, ids, /*skip=*/i % 2 == 0);
  }
}

TEST(TokenizerPropertyTest, MegabytesOfPiecesWithoutSpaces) {
  constexpr size_t kSize = 1 << 20;
  std::string words, emoji;
  while (words.size() < kSize) words += "thesleep";
  while (emoji.size() < kSize) emoji += "\U0001f600";
  for (const bool scored : {false, true}) {
    const auto tokenizer = Make(PiecesData(scored));
    for (const std::string& text : {std::string(kSize, 'a'), words, emoji, std::string(kSize, ' '),
                                    std::string(kSize, '\n'), std::string(kSize, '7')}) {
      EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, false), false), text);
    }
  }
}

TEST(TokenizerPropertyTest, BytesAreEncodedAsTheirReplacement) {
  std::mt19937 random(8);
  const auto tokenizer = Make(QwenLikeData());
  for (int i = 0; i < 2000; ++i) {
    const std::string bytes = RandomBytes(&random);
    const std::string text = ReplaceInvalidUtf8(bytes);
    EXPECT_TRUE(IsUtf8(text));
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(bytes, false), false), text);
  }
}

TEST(TokenizerPropertyTest, StreamedTextIsWholeAndEqual) {
  std::mt19937 random(9);
  const auto tokenizer = Make(TinyData());
  for (int i = 0; i < 2000; ++i) {
    std::vector<int32_t> ids;
    for (size_t n = random() % 40; n > 0; --n) ids.push_back(static_cast<int32_t>(random() % 520));
    ExpectStreamedAsWhole(*tokenizer, ids, /*skip=*/i % 2 == 0);
  }
}

TEST(TokenizerPropertyTest, MegabytesThatHurt) {
  constexpr size_t kSize = 1 << 20;
  std::string repeated;
  while (repeated.size() < kSize) repeated += "the";
  std::string marks = "a";
  while (marks.size() < kSize) marks += "\u0301\u0323";
  std::string tokens;
  while (tokens.size() < kSize) tokens += "<|im_start|";
  TokenizerData data = QwenLikeData();
  data.normalizer = {{NormalizerStep::Kind::kNfc}};
  const auto tokenizer = Make(std::move(data));
  for (const std::string& text :
       {std::string(kSize, 'a'), repeated, std::string(kSize, '<'), std::string(kSize, ' '),
        std::string(kSize, '\n'), std::string(kSize, '7'), tokens}) {
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, false), false), text);
  }
  EXPECT_FALSE(tokenizer->Encode(marks, false).empty());
}

TEST(TokenizerPropertyTest, ThreadsShareOneTokenizer) {
  const auto tokenizer = Make(QwenLikeData());
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> expected;
  std::mt19937 random(10);
  for (int i = 0; i < 200; ++i) {
    texts.push_back(RandomText(&random));
    expected.push_back(tokenizer->Encode(texts.back(), true));
  }
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 10; ++round) {
        for (size_t i = 0; i < texts.size(); ++i)
          wrong[t] += tokenizer->Encode(texts[i], true) != expected[i];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace somnus
