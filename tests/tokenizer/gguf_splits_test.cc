// How GGUF files cut text, by the name of their pre-tokenizer: the pieces are those of Hugging Face's
// tokenizers for the files of the models (tokenizers 0.23.3, Split with the same patterns). Kimi K2 has no
// such file, but a pattern for tiktoken: its pieces are those of the Python package regex 2026.11.19.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/tokenizer/gguf_tokenizer.h"
#include "tests/checkpoint/writers.h"
#include "text/tokenizer/pre_tokenizer.h"

namespace somnus {
namespace {

struct Case {
  const char* name;
  const char* pieces;  // joined by "|"
};

// The pieces of `text`, joined by "|"; empty: an error.
std::string Pieces(const char* name, absl::string_view text) {
  GgufWriter writer;
  writer.String("tokenizer.ggml.model", "gpt2");
  writer.String("tokenizer.ggml.pre", name);
  writer.Strings("tokenizer.ggml.tokens", {"a"});
  writer.Strings("tokenizer.ggml.merges", {});
  const std::string bytes = writer.Write();
  const auto file = MappedFile::Borrow("m.gguf", bytes);
  const auto gguf = GgufFile::Parse(*file);
  EXPECT_TRUE(gguf.ok()) << gguf.status();
  if (!gguf.ok()) return "";
  const auto data = ReadGgufTokenizer(*gguf);
  EXPECT_TRUE(data.ok()) << data.status();
  if (!data.ok()) return "";
  const auto splitter = PreTokenizer::Create(data->pre_tokenizer);
  EXPECT_TRUE(splitter.ok()) << splitter.status();
  if (!splitter.ok()) return "";
  PieceList list;
  (*splitter)->Split(text, true, &list);
  return absl::StrJoin(list.pieces, "|");
}

class GgufSplits : public testing::TestWithParam<Case> {};

TEST_P(GgufSplits, AreThoseOfTheModelsOwnFiles) {
  EXPECT_EQ(Pieces(GetParam().name, "It's IT'LL 12345 HelloWORLD's(x) naïve//\n\n 中文かなa100% +x e\u0301."),
            GetParam().pieces);
}

// Han of all categories: ideographs, an iteration mark, a number, radicals. The last pieces are white space
// before a line end, and at the end of the text.
TEST(GgufSplits, DivideHanFromOtherLetters) {
  constexpr char kText[] = "中文。A文b々〇⺀!⼀ 한국어중國 ﹅カナ、x Ⅷ½3\r\n \t Κ  ";
  EXPECT_EQ(Pieces("kimi-k2", kText),
            "中文|。A|文|b|々〇⺀|!⼀| 한국어중|國| ﹅|カナ|、x| |Ⅷ½3|\r\n| \t| Κ|  ");
  EXPECT_EQ(Pieces("deepseek-llm", kText),
            "中文|。|A|文|b|々|〇|⺀|!|⼀| |한국어중國| ﹅|カナ|、|x| |Ⅷ|½|3|\r|\n| \t| Κ|  ");
}

INSTANTIATE_TEST_SUITE_P(
    Names, GgufSplits,
    testing::Values(
        Case{"gpt-2", "It|'s| IT|'|LL| 12345| HelloWORLD|'s|(|x|)| naïve|//|\n\n| 中文かなa|100|%| +|x| e|́."},
        Case{"smollm",
             "It|'s| IT|'|LL| |1|2|3|4|5| HelloWORLD|'s|(|x|)| naïve|//|\n\n| 中文かなa|1|0|0|%| +|x| e|́."},
        Case{"refact",
             "It|'s| IT|'|LL| |1|2|3|4|5| HelloWORLD|'s|(|x|)| naïve|//|\n\n| 中文かなa|1|0|0|%| +|x| e|́."},
        Case{"llama-bpe",
             "It|'s| IT|'LL| |123|45| HelloWORLD|'s|(x|)| naïve|//\n\n| 中文かなa|100|%| +|x| e|́."},
        Case{"dbrx", "It|'s| IT|'LL| |123|45| HelloWORLD|'s|(x|)| naïve|//\n\n| 中文かなa|100|%| +|x| e|́."},
        Case{"smaug-bpe",
             "It|'s| IT|'LL| |123|45| HelloWORLD|'s|(x|)| naïve|//\n\n| 中文かなa|100|%| +|x| e|́."},
        Case{"glm4", "It|'s| IT|'LL| |123|45| HelloWORLD|'s|(x|)| naïve|//\n\n| 中文かなa|100|%| +|x| e|́."},
        Case{"chatglm-bpe",
             "It|'s| IT|'LL| |123|45| HelloWORLD|'s|(x|)| naïve|//\n\n| 中文かなa|100|%| +|x| e|́."},
        Case{"qwen2",
             "It|'s| IT|'LL| |1|2|3|4|5| HelloWORLD|'s|(x|)| naïve|//\n\n| 中文かなa|1|0|0|%| +|x| e|́."},
        Case{"tekken",
             "It|'s| IT|'LL| |1|2|3|4|5| Hello|WORLD|'s|(x|)| naïve|//\n\n| 中文かなa|1|0|0|%| +|x| "
             "e\u0301|."},
        Case{"gpt-4o",
             "It's| IT'LL| |123|45| Hello|WORLD's|(x|)| naïve|//\n\n| 中文かなa|100|%| +|x| e\u0301|."},
        Case{"llama4",
             "It's| IT'LL| |123|45| Hello|WORLD's|(x|)| naïve|//\n\n| 中文かなa|100|%| +|x| e\u0301|."},
        Case{"kanana2",
             "It's| IT'LL| |123|45| Hello|WORLD's|(x|)| naïve|//\n\n| 中文かなa|100|%| +|x| e\u0301|."},
        Case{"deepseek-llm",
             "It|'|s| IT|'|LL| |1|2|3|4|5| HelloWORLD|'|s|(|x|)| na|ï|ve|//|\n|\n| |中文かな|a|1|0|0|%| +|x| "
             "e|́|."},
        Case{"kimi-k2",
             "It's| IT'LL| |123|45| Hello|WORLD's|(x|)| naïve|//\n\n| |中文|かなa|100|%| +|x| e\u0301|."},
        Case{"deepseek-v3",
             "It|'s| IT|'LL| |123|45| HelloWORLD|'s|(x|)| naïve|//\n\n| |中文かな|a|100|%| +|x| e\u0301|."}));

}  // namespace
}  // namespace somnus
