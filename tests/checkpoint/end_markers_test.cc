#include "checkpoint/tokenizer/end_markers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/tokenizer/gguf_tokenizer.h"
#include "tests/checkpoint/writers.h"

namespace somnus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int32_t kNormal = 1, kControl = 3, kUserDefined = 4;

// A vocabulary with `marker`, of this type, as token 0.
TokenizerData Read(const std::string& marker, int32_t type, const std::string& chat_template = "",
                   const std::vector<std::pair<std::string, uint32_t>>& ids = {}) {
  GgufWriter w;
  w.String("tokenizer.ggml.model", "gpt2");
  w.String("tokenizer.ggml.pre", "gpt-2");
  w.Strings("tokenizer.ggml.tokens", {marker, "a", "b", "ab"});
  w.Int32s("tokenizer.ggml.token_type", {type, kNormal, kNormal, kNormal});
  w.Strings("tokenizer.ggml.merges", {"a b"});
  if (!chat_template.empty()) w.String("tokenizer.chat_template", chat_template);
  for (const auto& [name, id] : ids) w.Uint32(absl::StrCat("tokenizer.ggml.", name, "_token_id"), id);
  const std::string bytes = w.Write();
  const auto file = MappedFile::Borrow("m.gguf", bytes);
  const auto gguf = GgufFile::Parse(*file);
  EXPECT_TRUE(gguf.ok()) << gguf.status();
  auto data = ReadGgufTokenizer(*gguf);
  EXPECT_TRUE(data.ok()) << data.status();
  return *std::move(data);
}

bool IsControl(const TokenizerData& data, int32_t id) {
  return std::any_of(data.added_tokens.begin(), data.added_tokens.end(),
                     [id](const AddedToken& token) { return token.id == id && token.special; });
}

const char* const kCertain[] = {"<|im_end|>",
                                "<|eot_id|>",
                                "<|eom_id|>",
                                "<end_of_turn>",
                                "<|end|>",
                                "<|end_of_turn|>",
                                "<|EOT|>",
                                "<|endoftext|>",
                                "<|end_of_text|>",
                                "<|return|>",
                                "<|END_OF_TURN_TOKEN|>",
                                "<turn|>",
                                "<end_of_utterance>",
                                "<\uFF5Cend\u2581of\u2581sentence\uFF5C>"};
const char* const kAmbiguous[] = {"</s>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<eos>"};

TEST(EndMarkers, WhatNoTextHasByChanceEndsWhateverItsType) {
  for (const char* marker : kCertain) {
    for (const int32_t type : {kNormal, kControl, kUserDefined}) {
      const TokenizerData data = Read(marker, type);
      EXPECT_THAT(data.end_token_ids, ElementsAre(0)) << marker << type;
      EXPECT_TRUE(IsControl(data, 0)) << marker << type;
      EXPECT_EQ(data.warnings.size(), type == kControl ? 0u : 1u) << marker << type;
      EXPECT_THAT(data.warnings.empty() ? marker : data.warnings[0], HasSubstr(marker)) << type;
    }
  }
}

// "</s>" is also a tag of HTML: a vocabulary may have the tag as text.
TEST(EndMarkers, WhatMayBeTextEndsAsControlTokenOrInTheTemplate) {
  for (const char* marker : kAmbiguous) {
    for (const int32_t type : {kNormal, kUserDefined}) {
      const TokenizerData text = Read(marker, type, "{{ messages[0].content }}");
      EXPECT_THAT(text.end_token_ids, IsEmpty()) << marker;
      EXPECT_FALSE(IsControl(text, 0)) << marker;
      EXPECT_THAT(text.warnings, IsEmpty()) << marker;
      const TokenizerData written = Read(marker, type, absl::StrCat("{{ messages[0].content }}", marker));
      EXPECT_THAT(written.end_token_ids, ElementsAre(0)) << marker;
      EXPECT_TRUE(IsControl(written, 0)) << marker;
      EXPECT_EQ(written.warnings.size(), 1u) << marker;
    }
    EXPECT_THAT(Read(marker, kControl).end_token_ids, ElementsAre(0)) << marker;
  }
}

TEST(EndMarkers, OtherMarkersOfTheTemplateBecomeControlTokens) {
  const char* source = "<|im_start|>user\n{{ messages[0].content }}";
  const TokenizerData data = Read("<|im_start|>", kNormal, source);
  EXPECT_THAT(data.end_token_ids, IsEmpty());
  EXPECT_TRUE(IsControl(data, 0));
  EXPECT_EQ(data.warnings.size(), 1u);
  // A marker that the template does not write is text, and a user-defined marker is shown on purpose.
  EXPECT_FALSE(IsControl(Read("<|im_start|>", kNormal, "{{ messages[0].content }}"), 0));
  EXPECT_FALSE(IsControl(Read("<|im_start|>", kUserDefined, source), 0));
  // Texts of the template that are no markers stay texts.
  EXPECT_FALSE(IsControl(Read("user", kNormal, source), 0));
  EXPECT_FALSE(IsControl(Read("<think>", kNormal, "<think>"), 0));
}

TEST(EndMarkers, TheFilesIdsComeFirst) {
  EXPECT_THAT(Read("<|im_end|>", kControl, "", {{"eos", 2}}).end_token_ids, ElementsAre(2, 0));
  EXPECT_THAT(Read("<|im_end|>", kControl, "", {{"eos", 0}, {"eot", 1}, {"eom", 3}}).end_token_ids,
              ElementsAre(0, 1, 3));
  // A wrong eos does not hide the marker, and does not become a control token.
  const TokenizerData wrong = Read("<|im_end|>", kControl, "a", {{"eos", 1}});
  EXPECT_THAT(wrong.end_token_ids, ElementsAre(1, 0));
  EXPECT_FALSE(IsControl(wrong, 1));
  EXPECT_THAT(Read("<|im_end|>", kControl, "", {{"eos", 99}}).end_token_ids, ElementsAre(0));
}

// In Harmony's format <|end|> stands between the messages of a single answer.
TEST(EndMarkers, EndOfAMessageAmongSeveralIsNoEnd) {
  TokenizerData data{.tokens = {"<|end|>", "<|return|>", "<|call|>", "a"}};
  for (int32_t id = 0; id < 3; ++id) {
    data.added_tokens.push_back({.id = id, .content = data.tokens[id], .special = true});
  }
  TokenizerData phi = data;
  FindEndMarkers(&data);
  EXPECT_THAT(data.end_token_ids, ElementsAre(1, 2));
  phi.tokens[1] = phi.tokens[2] = "x";
  FindEndMarkers(&phi);
  EXPECT_THAT(phi.end_token_ids, ElementsAre(0));
}

}  // namespace
}  // namespace somnus
