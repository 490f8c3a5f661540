// How GGUF files cut text, by the name of their pre-tokenizer: the pieces are those of Hugging Face's
// tokenizers for the files of the models (tokenizers 0.23.3, Split with the same patterns).

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_join.h"
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

class GgufSplits : public testing::TestWithParam<Case> {};

TEST_P(GgufSplits, AreThoseOfTheModelsOwnFiles) {
  GgufWriter writer;
  writer.String("tokenizer.ggml.model", "gpt2");
  writer.String("tokenizer.ggml.pre", GetParam().name);
  writer.Strings("tokenizer.ggml.tokens", {"a"});
  writer.Strings("tokenizer.ggml.merges", {});
  const std::string bytes = writer.Write();
  const auto file = MappedFile::Borrow("m.gguf", bytes);
  const auto gguf = GgufFile::Parse(*file);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  const auto data = ReadGgufTokenizer(*gguf);
  ASSERT_TRUE(data.ok()) << data.status();
  const auto splitter = PreTokenizer::Create(data->pre_tokenizer);
  ASSERT_TRUE(splitter.ok()) << splitter.status();
  PieceList list;
  (*splitter)->Split("It's IT'LL 12345 HelloWORLD's(x) naïve//\n\n 中文かなa100% +x e\u0301.", true, &list);
  EXPECT_EQ(absl::StrJoin(list.pieces, "|"), GetParam().pieces);
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
        Case{"deepseek-v3",
             "It|'s| IT|'LL| |123|45| HelloWORLD|'s|(x|)| naïve|//\n\n| |中文かな|a|100|%| +|x| e\u0301|."}));

}  // namespace
}  // namespace somnus
