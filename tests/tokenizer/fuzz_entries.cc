#include "tests/tokenizer/fuzz_entries.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "base/utf8.h"
#include "text/jinja/chat_template.h"
#include "text/tokenizer/regex.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/unicode.h"

namespace somnus {
namespace {

const nlohmann::ordered_json& Conversation() {
  static const auto* const context = new nlohmann::ordered_json(nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "h\u00e9 <think> x"},
                 {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1.5}}}]},
                 {"role": "tool", "content": [{"type": "text", "text": "t"}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "s": "Hello", "n": 7, "f": 2.5, "none": null,
    "l": [3, 1, 2], "d": {"b": 1, "a": [2]}})"));
  return *context;
}

std::unique_ptr<Tokenizer> MakeTokenizer() {
  TokenizerData data;
  for (int b = 0; b < 256; ++b) data.tokens.push_back(ByteToAlphabet(static_cast<uint8_t>(b)));
  for (const char* pair : {"ab", "aa", "bc"}) {
    data.tokens.push_back(pair);
    data.merges.emplace_back(std::string(1, pair[0]), std::string(1, pair[1]));
  }
  data.added_tokens = {{300, "<|a|>", true}, {301, "<|a", true, true, true}, {302, "|>", false}};
  data.pre_tokenizer = {PreTokenizerStep{PreTokenizerStep::Kind::kByteLevel}};
  auto tokenizer = Tokenizer::Create(std::move(data));
  SOMNUS_CHECK(tokenizer.ok());
  return std::move(*tokenizer);
}

// A tokenizer of SentencePiece's kind: bytes, scores, a sign for spaces, text that loses its first space.
std::unique_ptr<Tokenizer> MakePiecesTokenizer() {
  constexpr char kSpace[] = "\u2581";
  TokenizerData data;
  for (int b = 0; b < 256; ++b) data.tokens.push_back(absl::StrFormat("<0x%02X>", b));
  data.merge_scores.resize(256, std::nanf(""));
  for (const char* piece : {kSpace, "a", "b", "c", "aa", "ab", "\u2581a", "\u2581\u2581", "bc", "\u00e9"}) {
    data.tokens.push_back(piece);
    data.merge_scores.push_back(-static_cast<float>(data.tokens.size() % 5));
  }
  data.byte_fallback = true;
  data.added_tokens = {{300, "<|a|>", true}, {301, "<|a", true, true, true}, {302, "|>", false}};
  data.normalizer = {{NormalizerStep::Kind::kPrepend, kSpace}, {NormalizerStep::Kind::kReplace, kSpace, " "}};
  using Kind = DecoderStep::Kind;
  data.decoder = {
      {Kind::kReplace, kSpace, " "}, {Kind::kByteFallback}, {Kind::kFuse}, {Kind::kStrip, "", " ", 1}};
  auto tokenizer = Tokenizer::Create(std::move(data));
  SOMNUS_CHECK(tokenizer.ok());
  return std::move(*tokenizer);
}

// Encodes the bytes and decodes the ids; returns the text.
std::string CheckRound(const Tokenizer& tokenizer, absl::string_view bytes) {
  const std::vector<int32_t> ids = tokenizer.Encode(bytes, true);
  const std::string text = tokenizer.Decode(ids, false);
  SOMNUS_CHECK(IsUtf8(text));
  IncrementalDetokenizer stream(&tokenizer, false);
  std::string streamed;
  for (const int32_t id : ids) streamed += stream.Append(id);
  SOMNUS_CHECK(streamed + stream.Flush() == text);
  return text;
}

}  // namespace

void FuzzChatTemplate(absl::string_view bytes) {
  ChatTemplateLimits limits{.max_steps = 20'000, .max_output_bytes = 1 << 16};
  const auto compiled = ChatTemplate::Compile(std::string(bytes), limits);
  if (!compiled.ok()) return;
  const absl::StatusOr<std::string> out = (*compiled)->Render(Conversation());
  SOMNUS_CHECK(!out.ok() || out->size() <= static_cast<size_t>(limits.max_output_bytes));
  SOMNUS_CHECK(!out.ok() || IsUtf8(*out));
}

void FuzzTokenizer(absl::string_view bytes) {
  static const Tokenizer* const tokenizer = MakeTokenizer().release();
  static const Tokenizer* const pieces = MakePiecesTokenizer().release();
  CheckRound(*tokenizer, bytes);
  const std::string text = CheckRound(*pieces, bytes);
  // Every character is a piece or bytes: without added tokens the text loses only the sign for spaces.
  if (bytes.find("<|") == absl::string_view::npos && bytes.find("|>") == absl::string_view::npos) {
    SOMNUS_CHECK(text == absl::StrReplaceAll(ReplaceInvalidUtf8(bytes), {{"\u2581", " "}}));
  }
}

void FuzzRegex(absl::string_view bytes) {
  const size_t zero = std::min(bytes.find('\0'), bytes.size());
  const auto regex = Regex::Compile(std::string(bytes.substr(0, zero)), false);
  if (!regex.ok()) return;
  const std::string text = ReplaceInvalidUtf8(bytes.substr(zero));
  std::vector<std::pair<size_t, size_t>> matches;
  (*regex)->FindAll(text, &matches);
  size_t done = 0;
  for (const auto& [begin, end] : matches) {
    SOMNUS_CHECK(begin >= done && end >= begin && end <= text.size());
    done = end;
  }
}

}  // namespace somnus
