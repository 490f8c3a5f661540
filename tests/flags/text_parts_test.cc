// The parts of a model that a server reads beside the weights: end tokens and chat templates.

#include "coordinator/text_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/str_replace.h"
#include "tests/fakes/temp_dir.h"

namespace somnus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TextPartsTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"config.json", "generation_config.json", "tokenizer.json",
                             "tokenizer_config.json", "chat_template.jinja"}) {
      std::filesystem::copy_file(std::filesystem::path("tests/data/tiny/qwen3") / name, Path(name));
      std::filesystem::permissions(Path(name), std::filesystem::perms::owner_all);
    }
  }
  std::filesystem::path Path(const std::string& name) { return std::filesystem::path(dir_.path()) / name; }
  void Write(const std::string& name, const std::string& text) { std::ofstream(Path(name)) << text; }
  void SetKey(const std::string& file, const std::string& key, const nlohmann::json& value) {
    std::ifstream in(Path(file));
    nlohmann::json object = nlohmann::json::parse(in);
    object[key] = value;
    Write(file, object.dump());
  }
  void Replace(const std::string& file, const std::string& from, const std::string& to) {
    std::ifstream in(Path(file));
    const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    Write(file, absl::StrReplaceAll(text, {{from, to}}));
  }
  TextParts Read() {
    const auto checkpoint = Checkpoint::Open(dir_.path(), LoadFormat::kDummy);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    auto parts = ReadTextParts(**checkpoint, dir_.path());
    EXPECT_TRUE(parts.ok()) << parts.status();
    return *std::move(parts);
  }

  TempDir dir_;
};

TEST_F(TextPartsTest, TheTokenizersEosCountsBesideTheConfigurations) {
  EXPECT_THAT(Read().eos_token_ids, ElementsAre(2));  // <|im_end|>, named by all three files
  SetKey("generation_config.json", "eos_token_id", 0);
  EXPECT_THAT(Read().eos_token_ids, ElementsAre(0, 2));
  SetKey("generation_config.json", "eos_token_id", nullptr);
  SetKey("config.json", "eos_token_id", nullptr);
  EXPECT_THAT(Read().eos_token_ids, ElementsAre(2));
  EXPECT_NE(Read().grammars, nullptr);
  SetKey("tokenizer_config.json", "eos_token", nullptr);
  EXPECT_THAT(Read().eos_token_ids, ElementsAre(0, 2)) << "nothing is named: the markers of the vocabulary";
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
    Replace(file, "<|im_end|>", "<|b|>");
    Replace(file, "<|endoftext|>", "<|a|>");
  }
  const TextParts endless = Read();
  EXPECT_THAT(endless.eos_token_ids, ElementsAre());
  EXPECT_EQ(endless.grammars, nullptr) << "no text in a form could end";
  EXPECT_NE(endless.grammar_problem, "");
  // Ids outside of the vocabulary end nothing.
  SetKey("config.json", "eos_token_id", {7, 512, 100000});
  EXPECT_THAT(Read().eos_token_ids, ElementsAre(7));
}

TEST_F(TextPartsTest, ATemplateThatDoesNotCompileIsAProblemWithLineAndReason) {
  EXPECT_NE(Read().templates.chat, nullptr);
  Write("chat_template.jinja", "a\n{% if %}");
  const ModelTemplates templates = Read().templates;
  EXPECT_EQ(templates.chat, nullptr);
  EXPECT_EQ(templates.chat_problem, "it does not compile: line 2: expected an expression, got '%}'");
  EXPECT_EQ(templates.tools, nullptr);
  EXPECT_EQ(templates.tools_problem, "");
  std::filesystem::remove(Path("chat_template.jinja"));
  EXPECT_EQ(Read().templates.chat_problem, "");
  SetKey("tokenizer_config.json", "chat_template",
         {{{"name", "default"}, {"template", "x"}}, {{"name", "tool_use"}, {"template", "{{"}}});
  EXPECT_NE(Read().templates.chat, nullptr);
  EXPECT_THAT(Read().templates.tools_problem, HasSubstr("it does not compile: line 1"));
}

}  // namespace
}  // namespace somnus
