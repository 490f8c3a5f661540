// Prompts that end inside of the last message, compared with the prompts of transformers
// (tests/data/make_continue_goldens.py).
#include "text/jinja/continued_message.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "tests/tokenizer/golden_files.h"
#include "tests/tokenizer/load_tokenizer.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<std::string> Continue(const std::string& source, const Json& messages,
                                     Json variables = Json::object()) {
  const auto compiled = ChatTemplate::Compile(source);
  if (!compiled.ok()) return compiled.status();
  variables["messages"] = messages;
  variables["tools"] = nullptr;
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = false;
  return RenderContinued(**compiled, variables);
}

// The source of a template of the golden file; empty if neither the repository nor this machine has a source.
std::string SourceOf(const Json& entry) {
  if (entry["source"].is_string()) return entry["source"].get<std::string>();
  const auto directory = LargeTokenizerDirectory(entry["name"].get<std::string>());
  return directory ? LoadChatTemplate(*directory) : "";
}

// Compares the cases of templates in the repository, or (`large`) outside; returns the number of cases.
int Compare(bool large) {
  const std::vector<Json> lines = ReadGolden("continue_final_message.jsonl");
  int compared = 0;
  for (size_t i = 1; i < lines.size(); ++i) {
    const Json& entry = lines[0]["templates"][lines[i]["template"].get<size_t>()];
    const std::string source = SourceOf(entry);
    if (entry["source"].is_null() != large || source.empty()) continue;
    const Json& messages = lines[0]["conversations"][lines[i]["conversation"].get<size_t>()];
    const auto prompt = Continue(source, messages, lines[0]["variables"]);
    ++compared;
    SCOPED_TRACE(entry["name"].get<std::string>() + ": " + messages.dump());
    EXPECT_EQ(prompt.ok(), lines[i]["prompt"].is_string()) << prompt.status();
    if (prompt.ok() && lines[i]["prompt"].is_string()) {
      EXPECT_EQ(*prompt, lines[i]["prompt"].get<std::string>());
    }
  }
  return compared;
}

TEST(ContinuedMessage, EqualsTransformers) { EXPECT_GE(Compare(/*large=*/false), 2000); }

TEST(ContinuedMessage, LargeTemplatesEqualTransformers) {
  if (Compare(/*large=*/true) == 0)
    GTEST_SKIP() << "set SOMNUS_TOKENIZER_DIR to a directory with llama3 and qwen3";
}

TEST(ContinuedMessage, ErrorsAreToldApart) {
  const Json hello = Json::parse(R"([{"role": "assistant", "content": "hello"}])");
  const absl::Status gone = Continue("{{ messages[0].role }}", hello).status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(gone.message(), "the chat template does not name the content of messages");
  const absl::Status cut = Continue("{{ messages[0].content[:4] }}", hello).status();
  EXPECT_EQ(cut.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(cut.message(), "the chat template does not write the last message as it is");
  EXPECT_EQ(Continue("{{ messages[0].content | upper }}", hello).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Continue("{{ raise_exception('no') }}{{ messages[0].content }}", hello).status().message(), "no");
  EXPECT_EQ(Continue("{{ raise_exception('no') }}{{ messages[0].content }}", hello).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// The word with which transformers marks the end of the text is ordinary text here.
TEST(ContinuedMessage, NoMessageCanHoldTheMark) {
  const char* source = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
  const std::string tag = "CONTINUE_FINAL_MESSAGE_TAG ";
  const Json messages = {{{"role", "user"}, {"content", tag}},
                         {{"role", "assistant"}, {"content", tag + "x"}}};
  EXPECT_EQ(Continue(source, messages).value(), "[" + tag + "][" + tag + "x");
  // A prompt without the last message has no mark.
  EXPECT_FALSE(Continue("{{ messages[0].content }}", messages).ok());
}

// In transformers' prompt the first copy of the message still has the word.
TEST(ContinuedMessage, AMessageThatIsWrittenTwiceHasNoMarkLeft) {
  const Json messages = {{{"role", "assistant"}, {"content", "hello "}}};
  EXPECT_EQ(Continue("{{ messages[0].content }}|{{ messages[0].content }}|", messages).value(),
            "hello |hello ");
  EXPECT_EQ(Continue("{{ messages[0].content | trim }}|{{ messages[0].content | trim }}|", messages).value(),
            "hello |hello");
}

}  // namespace
}  // namespace somnus
