// Ids and texts as Hugging Face tokenizers gives them (tools/make_tokenizer_goldens.sh).

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "tests/tokenizer/golden_files.h"
#include "tests/tokenizer/load_tokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace somnus {
namespace {

std::unique_ptr<Tokenizer> Make(absl::StatusOr<TokenizerData> data) {
  EXPECT_TRUE(data.ok()) << data.status();
  auto tokenizer = Tokenizer::Create(*std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return std::move(*tokenizer);
}

void Check(const Tokenizer& tokenizer, const std::string& golden) {
  const auto lines = ReadGolden(golden);
  ASSERT_GE(lines.size(), 100u);
  for (const auto& line : lines) {
    const std::string text = line["text"];
    const auto ids = line["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.Encode(text, true), ids) << text;
    EXPECT_EQ(tokenizer.Decode(ids, true), line["decoded"].get<std::string>()) << text;
    IncrementalDetokenizer stream(&tokenizer, true);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.Append(id);
    EXPECT_EQ(streamed + stream.Flush(), line["decoded"].get<std::string>()) << text;
  }
}

TEST(TokenizerGoldenTest, Tiny) { Check(*Make(LoadTokenizerData("tests/data/tiny/qwen3")), "tiny.jsonl"); }

TEST(TokenizerGoldenTest, TinyThroughTheCheckpointReader) {
  for (const char* name : {"llama-rope3", "llama-uneven", "opt", "qwen2", "qwen3"}) {
    const auto checkpoint = Checkpoint::Open(std::string("tests/data/tiny/") + name);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    absl::StatusOr<TokenizerData> data = (*checkpoint)->ReadTokenizer();
    ASSERT_TRUE(data.ok()) << data.status();
    data->post_processor = {};  // the golden ids are those of tokenizer.json alone
    Check(*Make(std::move(data)), "tiny.jsonl");
  }
}

class LargeTokenizerTest : public testing::TestWithParam<const char*> {};

TEST_P(LargeTokenizerTest, EqualsHuggingFace) {
  const auto directory = LargeTokenizerDirectory(GetParam());
  if (!directory)
    GTEST_SKIP() << "set SOMNUS_TOKENIZER_DIR to a directory with " << GetParam() << "/tokenizer.json";
  Check(*Make(LoadTokenizerData(*directory)), std::string(GetParam()) + ".jsonl");
}

INSTANTIATE_TEST_SUITE_P(Models, LargeTokenizerTest, testing::Values("smollm2", "qwen3", "llama3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace somnus
