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
  absl::StatusOr<TextParts> TryToRead(const ChatFlags& chat) {
    const auto checkpoint = Checkpoint::Open(dir_.path(), LoadFormat::kDummy);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return ReadTextParts(**checkpoint, dir_.path(), chat);
  }
  TextParts Read(const ChatFlags& chat = {}) {
    auto parts = TryToRead(chat);
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

TEST_F(TextPartsTest, TheParsersAreThoseOfTheTemplateUnlessAFlagNamesOthers) {
  const auto formats = [this](const ChatFlags& chat) {
    const TurnFormat format = Read(chat).turn_format;
    return std::pair(format.tools == nullptr ? "none" : std::string(format.tools->name),
                     format.reasoning == nullptr ? "none" : std::string(format.reasoning->name));
  };
  using Pair = std::pair<std::string, std::string>;
  Write("chat_template.jinja", "<tool_call></tool_call><think></think>");
  EXPECT_EQ(formats({}), Pair("hermes", "qwen3"));
  EXPECT_EQ(formats({.tool_call_parser = "none"}), Pair("none", "qwen3"));
  EXPECT_EQ(formats({.reasoning_parser = "none"}), Pair("hermes", "none"));
  EXPECT_EQ(formats({.tool_call_parser = "llama4_json", .reasoning_parser = "deepseek_r1"}),
            Pair("llama3_json", "deepseek_r1"))
      << "an alias names its row";
  for (const ChatFlags& wrong :
       {ChatFlags{.tool_call_parser = "nope"}, ChatFlags{.reasoning_parser = "nope"}}) {
    const absl::Status status = TryToRead(wrong).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("nope"));
  }
}

TEST_F(TextPartsTest, ATemplateOfAFlagStandsInPlaceOfAllOfTheModels) {
  SetKey("tokenizer_config.json", "chat_template",
         {{{"name", "default"}, {"template", "x"}}, {{"name", "tool_use"}, {"template", "y"}}});
  std::filesystem::remove(Path("chat_template.jinja"));
  EXPECT_NE(Read().templates.tools, nullptr);
  const TextParts parts = Read({.chat_template = "[INST]{{ messages[0].content }}[TOOL_CALLS]"});
  EXPECT_EQ(parts.templates.tools, nullptr);
  ASSERT_NE(parts.templates.chat, nullptr);
  EXPECT_EQ(*parts.templates.chat->Render({{"messages", {{{"role", "user"}, {"content", "a"}}}}}),
            "[INST]a[TOOL_CALLS]");
  ASSERT_NE(parts.turn_format.tools, nullptr) << "the parser goes by the flag's template";
  EXPECT_EQ(parts.turn_format.tools->name, "mistral");
  EXPECT_EQ(parts.turn_format.reasoning, nullptr);
  const absl::Status status = TryToRead({.chat_template = "{% if %}"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--chat-template: it does not compile: line 1"));
  Write("chat_template.jinja", "{% if %}");
  EXPECT_EQ(Read({.chat_template = "x"}).templates.chat_problem, "")
      << "the model's own template is not used";
}

TEST_F(TextPartsTest, DefaultVariablesOfTheTemplateAreThoseOfTheFlag) {
  EXPECT_EQ(Read().default_template_kwargs, nullptr);
  const TextParts parts = Read({.default_template_kwargs = R"({"enable_thinking": false, "b": [1]})"});
  ASSERT_NE(parts.default_template_kwargs, nullptr);
  EXPECT_EQ(parts.default_template_kwargs->dump(), R"({"enable_thinking":false,"b":[1]})");
}

}  // namespace
}  // namespace somnus
