// The files beside a tokenizer: end tokens and chat templates; Git LFS pointers and byte order marks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "checkpoint/tokenizer/hf_tokenizer.h"
#include "tests/checkpoint/writers.h"

namespace somnus {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

json Minimal() {
  return json::parse(
      R"({"added_tokens":[{"id":3,"content":"<s>","special":true,"lstrip":true}],"normalizer":null,
    "pre_tokenizer":null,"post_processor":null,"decoder":null,
    "model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"],"ignore_merges":true,"unk_token":null}})");
}

class TokenizerFiles : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) { WriteFile(directory_ + "/" + name, text); }
  std::string directory_ = MakeTempDir();
};

TEST_F(TokenizerFiles, TheTokenizersEosEndsAnswers) {
  Write("tokenizer.json", Minimal().dump());
  const auto ends = [this] { return ReadHfTokenizer(directory_)->end_token_ids; };
  EXPECT_THAT(ends(), IsEmpty());
  for (const char* eos : {R"("b")", R"({"content":"b","lstrip":false,"__type":"AddedToken"})"}) {
    Write("tokenizer_config.json", absl::StrCat(R"({"eos_token":)", eos, "}"));
    EXPECT_THAT(ends(), ElementsAre(1)) << eos;
  }
  Write("tokenizer_config.json", R"({"eos_token":null})");
  EXPECT_THAT(ends(), IsEmpty());
  Write("special_tokens_map.json", R"({"eos_token":{"content":"a"}})");
  EXPECT_THAT(ends(), ElementsAre(0));
  Write("tokenizer_config.json", R"({"eos_token":"<nowhere>"})");
  EXPECT_THAT(ends(), IsEmpty());
  Write("tokenizer_config.json",
        R"({"eos_token":"<x>","added_tokens_decoder":{"4":{"content":"<x>","special":true}}})");
  EXPECT_THAT(ends(), ElementsAre(4));
}

TEST_F(TokenizerFiles, NamedTemplates) {
  Write("tokenizer.json", Minimal().dump());
  Write("tokenizer_config.json", R"({"chat_template":[{"name":"tool_use","template":"T"},
                                                      {"name":"default","template":"D"},
                                                      {"name":"rag","template":"R"}]})");
  auto data = ReadHfTokenizer(directory_);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->chat_template + data->tool_template, "DT");
  EXPECT_EQ(data->chat_template_problem, "");
  // A single template needs no name; among several templates no default is guessed.
  Write("tokenizer_config.json", R"({"chat_template":[{"name":"chat","template":"C"}]})");
  EXPECT_EQ(ReadHfTokenizer(directory_)->chat_template, "C");
  Write("tokenizer_config.json",
        R"({"chat_template":[{"name":"rag","template":"R"},{"name":"chat","template":"C"}]})");
  data = ReadHfTokenizer(directory_);
  EXPECT_EQ(data->chat_template, "");
  EXPECT_EQ(data->chat_template_problem,
            "tokenizer_config.json has several, of which none is the default: chat, rag");
  Write("tokenizer_config.json", R"({"chat_template":[]})");
  EXPECT_EQ(ReadHfTokenizer(directory_)->chat_template_problem, "");
  // Templates in separate files replace the templates of tokenizer_config.json.
  Write("tokenizer_config.json", R"({"chat_template":[{"name":"tool_use","template":"T"},
                                                      {"name":"default","template":"D"}]})");
  Write("chat_template.jinja", "J");
  data = ReadHfTokenizer(directory_);
  EXPECT_EQ(data->chat_template + data->tool_template, "J");
  std::filesystem::create_directory(directory_ + "/additional_chat_templates");
  Write("additional_chat_templates/tool_use.jinja", "JT");
  EXPECT_EQ(ReadHfTokenizer(directory_)->tool_template, "JT");
}

TEST_F(TokenizerFiles, GitLfsPointersAndByteOrderMarks) {
  Write("tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n");
  EXPECT_THAT(ReadHfTokenizer(directory_).status().ToString(),
              HasSubstr("INVALID_ARGUMENT: tokenizer.json: a Git LFS pointer in place of the file"));
  Write("tokenizer.json", "\xEF\xBB\xBF" + Minimal().dump());
  Write("tokenizer_config.json", "\xEF\xBB\xBF{}");
  EXPECT_TRUE(ReadHfTokenizer(directory_).ok()) << ReadHfTokenizer(directory_).status();
}

}  // namespace
}  // namespace somnus
