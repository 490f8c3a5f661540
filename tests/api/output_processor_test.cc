#include "coordinator/openai/output_processor.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/api/fakes.h"

namespace somnus {
namespace {

// Feeds `text`, one or more bytes per output, and returns all text of the deltas.
struct Result {
  std::string text;
  int32_t tokens = 0;
  OutputDelta last;
};

Result Feed(const std::string& text, const OutputOptions& options, std::mt19937* random = nullptr) {
  const ByteTokenizer tokenizer;
  OutputProcessor processor(&tokenizer, options);
  Result result;
  for (size_t at = 0; at < text.size() && !processor.finished();) {
    const size_t n = random == nullptr ? 1 : std::min<size_t>(1 + (*random)() % 4, text.size() - at);
    RequestOutput output;
    for (size_t i = 0; i < n; ++i) output.token_ids.push_back(static_cast<unsigned char>(text[at + i]));
    at += n;
    if (at == text.size()) output.finish_reason = FinishReason::kLength;
    OutputDelta delta = processor.Process(std::move(output));
    result.text += delta.text;
    if (delta.finish_reason != FinishReason::kNone) result.last = std::move(delta);
  }
  result.tokens = processor.num_tokens();
  return result;
}

// The definition, by a scan over the whole text: the stop string that ends first ends the text.
std::string Expected(const std::string& text, const OutputOptions& options) {
  for (size_t end = 1; end <= text.size(); ++end) {
    if (end <= static_cast<size_t>(options.min_tokens)) continue;
    for (const std::string& stop : options.stop) {
      if (end < stop.size() || text.compare(end - stop.size(), stop.size(), stop) != 0) continue;
      return text.substr(0, options.include_stop_str_in_output ? end : end - stop.size());
    }
  }
  return text;
}

TEST(OutputProcessorTest, StopsAndDoesNotLeak) {
  const Result result = Feed("one two three", {.stop = {"two"}});
  EXPECT_EQ(result.text, "one ");
  EXPECT_EQ(result.last.finish_reason, FinishReason::kStop);
  EXPECT_EQ(result.last.stop_string, "two");
  EXPECT_TRUE(result.last.engine_still_runs);
  EXPECT_EQ(result.tokens, 7);
}

TEST(OutputProcessorTest, HoldsBackOnlyWhatMayBecomeAStop) {
  const ByteTokenizer tokenizer;
  OutputProcessor processor(&tokenizer, {.stop = {"abc"}});
  const auto feed = [&](char c) { return processor.Process(RequestOutput{.token_ids = {c}}).text; };
  EXPECT_EQ(feed('x'), "x");
  EXPECT_EQ(feed('a'), "");
  EXPECT_EQ(feed('b'), "");
  EXPECT_EQ(feed('a'), "ab");
  EXPECT_EQ(feed('z'), "az");
}

TEST(OutputProcessorTest, GivesBackWhatWasHeldAtTheEnd) {
  const Result result = Feed("say stop", {.stop = {"stopped"}});
  EXPECT_EQ(result.text, "say stop");
  EXPECT_EQ(result.last.finish_reason, FinishReason::kLength);
}

TEST(OutputProcessorTest, MinTokensHidesEarlyStops) {
  EXPECT_EQ(Feed("aXbXc", {.stop = {"X"}, .min_tokens = 2}).text, "aXb");
  EXPECT_EQ(Feed("aXbXc", {.stop = {"X"}, .min_tokens = 1}).text, "a");
}

TEST(OutputProcessorTest, EndingTokenIsCountedNotWritten) {
  const ByteTokenizer tokenizer;
  for (const bool include : {false, true}) {
    OutputProcessor processor(&tokenizer, {.include_stop_str_in_output = include});
    RequestOutput output{.token_ids = {'a', 'b'}, .finish_reason = FinishReason::kStop, .stop_token_id = 'b'};
    const OutputDelta delta = processor.Process(std::move(output));
    EXPECT_EQ(delta.text, include ? "ab" : "a");
    EXPECT_EQ(delta.stop_token_id, 'b');
    EXPECT_EQ(processor.num_tokens(), 2);
    EXPECT_FALSE(delta.engine_still_runs);
  }
}

TEST(OutputProcessorTest, HalfACharacterAtTheEndIsLeftOut) {
  EXPECT_EQ(Feed("ok\xE4\xBD", {}).text, "ok");
  EXPECT_EQ(Feed("ok\xE4\xBD", {.stop = {"\uFFFD"}}).text, "ok");
  EXPECT_EQ(Feed("ok\xE4\xBD!", {}).text, "ok\uFFFD!") << "nothing is left out in the middle";
}

TEST(OutputProcessorTest, NothingAfterTheEnd) {
  const ByteTokenizer tokenizer;
  OutputProcessor processor(&tokenizer, {.stop = {"a"}});
  EXPECT_EQ(processor.Process(RequestOutput{.token_ids = {'a'}}).finish_reason, FinishReason::kStop);
  RequestOutput late{.token_ids = {'b'}, .finish_reason = FinishReason::kAbort};
  const OutputDelta delta = processor.Process(std::move(late));
  EXPECT_EQ(delta.text, "");
  EXPECT_EQ(delta.finish_reason, FinishReason::kNone);
  EXPECT_EQ(processor.num_tokens(), 1);
}

// Small alphabets make overlaps and false starts common.
TEST(OutputProcessorTest, RandomTextsStopsAndSplits) {
  std::mt19937 random(7);
  const auto word = [&](size_t length) {
    std::string text;
    for (size_t i = 0; i < length; ++i) text += static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int round = 0; round < 20000; ++round) {
    OutputOptions options;
    for (size_t i = 0, n = random() % 4; i < n; ++i) options.stop.push_back(word(1 + random() % 4));
    options.include_stop_str_in_output = random() % 2 == 0;
    options.min_tokens = static_cast<int32_t>(random() % 2 == 0 ? 0 : random() % 8);
    const std::string text = word(1 + random() % 24);
    const Result result = Feed(text, options, &random);
    ASSERT_EQ(result.text, Expected(text, options)) << text;
  }
}

// SentencePiece's tokenizers write no space before a text's first word, but an answer continues a text.
TEST(OutputProcessorTest, AnAnswerKeepsTheSpaceOfItsFirstWord) {
  TokenizerData data{.tokens = {"\u2581a", "b"}};
  using Kind = DecoderStep::Kind;
  data.decoder = {{Kind::kReplace, "\u2581", " "}, {Kind::kFuse}, {Kind::kStrip, "", " ", 1}};
  const auto tokenizer = Tokenizer::Create(std::move(data));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const bool at_start : {false, true}) {
    OutputProcessor processor(tokenizer->get(), {}, at_start);
    RequestOutput output{.token_ids = {0, 1, 0}, .finish_reason = FinishReason::kLength};
    EXPECT_EQ(processor.Process(std::move(output)).text, at_start ? "ab a" : " ab a");
  }
}

}  // namespace
}  // namespace somnus
