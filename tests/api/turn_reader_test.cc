// Answers that end early: by their length, and by stop strings at every place of recorded turns of all
// formats.

#include "coordinator/openai/turn_reader.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/text_tools/recorded_turns.h"

namespace somnus {
namespace {

std::shared_ptr<AnswerFormat> FormatNamed(absl::string_view tools) {
  auto format = std::make_shared<AnswerFormat>();
  format->format.tools = FindToolFormat(tools);
  return format;
}

struct Answer {
  ParsedTurn turn;
  bool cuts_call = false;
};

// The answer that `text` gives in pieces of `piece` bytes; `stop`: the stop string that has ended the text.
Answer Read(std::shared_ptr<const AnswerFormat> format, absl::string_view text,
            std::optional<std::string> stop, size_t piece = 1000) {
  TurnReader reader(std::move(format));
  Answer answer;
  for (size_t at = 0; at < text.size(); at += piece) {
    OutputDelta delta{.text = std::string(text.substr(at, piece))};
    reader.Read(&delta);
    answer.turn.Add(delta.events);
  }
  OutputDelta last{.finish_reason = FinishReason::kStop, .stop_string = std::move(stop)};
  reader.Read(&last);
  answer.turn.Add(last.events);
  answer.cuts_call = last.cuts_call;
  return answer;
}

std::string Show(const Answer& answer) {
  std::string shown = absl::StrCat(answer.cuts_call ? "cut: " : "", answer.turn.content);
  for (const ParsedTurn::Call& call : answer.turn.calls)
    absl::StrAppend(&shown, "|", call.name, call.arguments);
  return shown;
}

TEST(TurnReaderTest, AForcedCallThatIsCutBeforeItsNameIsNoContent) {
  const auto events = [](bool only_calls) {
    const auto format = FormatNamed("hermes");
    format->only_calls = only_calls;
    TurnReader reader(format);
    OutputDelta delta{.text = "<tool_call>\n{\"na", .finish_reason = FinishReason::kLength};
    reader.Read(&delta);
    return delta.events.size();
  };
  EXPECT_EQ(events(/*only_calls=*/true), 0u);
  EXPECT_GT(events(/*only_calls=*/false), 0u) << "under \"auto\" nothing is lost";
}

TEST(TurnReaderTest, AStopStringInTheSecondCallOfAListCutsThatCall) {
  const std::string first = "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}";
  for (const auto& [rest, shown] : std::initializer_list<std::pair<const char*, const char*>>{
           {"", "|f{}"},
           {", ", "|f{}"},
           {", {\"na", "|f{}"},
           {", {\"name\": \"g\"", "cut: |f{}|g"},
           {", {\"name\": \"g\", \"arguments\": {\"a\": 1", "cut: |f{}|g{\"a\": 1"},
           {", {\"name\": \"g\", \"arguments\": {\"a\": 1}", "|f{}|g{\"a\": 1}"}}) {
    const auto format = FormatNamed("mistral");
    EXPECT_EQ(Show(Read(format, absl::StrCat(first, rest), "END")), shown) << rest;
    format->parallel_tool_calls = false;
    EXPECT_EQ(Show(Read(format, absl::StrCat(first, rest), "END")), "|f{}") << rest;
  }
}

TEST(TurnReaderTest, AStopStringThatMarksTheEndOfACallLeavesTheCallWhole) {
  const std::string hermes = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1";
  const std::string harmony = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}";
  EXPECT_EQ(Show(Read(FormatNamed("hermes"), hermes, "\n</tool_call>")), "|f{\"a\": 1}");
  EXPECT_EQ(Show(Read(FormatNamed("hermes"), hermes, "</tool_call><|im_end|>")), "|f{\"a\": 1}");
  EXPECT_EQ(Show(Read(FormatNamed("hermes"), hermes, "<")), "cut: |f{\"a\": 1");
  EXPECT_EQ(Show(Read(FormatNamed("hermes"), hermes + "0, \"b\": \"", "</tool_call>")),
            "cut: |f{\"a\": 10, \"b\": \"")
      << "the marker stands within a string";
  EXPECT_EQ(Show(Read(FormatNamed("openai"), harmony, "<|call|>")), "|f{\"a\": 1}");
  EXPECT_EQ(Show(Read(FormatNamed("openai"), harmony, "END")), "|f{\"a\": 1}");
  EXPECT_EQ(Show(Read(FormatNamed("openai"), harmony.substr(0, harmony.size() - 1), "END")),
            "cut: |f{\"a\": 1");
  EXPECT_EQ(Show(Read(FormatNamed("openai"), harmony.substr(0, harmony.size() - 3), "<|call|>")),
            "cut: |f{\"a\":")
      << "GPT-OSS's arguments stay as they are";
}

TEST(TurnReaderTest, AStopStringMakesNoCallOfAReasoningThatRehearsesOne) {
  const auto format = FormatNamed("hermes");
  format->format.reasoning = FindReasoningFormat("qwen3");
  const std::string text = "<think>So\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1";
  EXPECT_EQ(Show(Read(format, text, "END")), "");
  EXPECT_EQ(Show(Read(format, text, std::nullopt)), "|f{\"a\": 1}") << "the model has ended its turn";
}

TEST(TurnReaderTest, AStopStringAtEveryPlaceOfEveryFormat) {
  const ToolSchemas schemas(RecordedTools(), /*keeps_schemas=*/true);
  int cut = 0, whole = 0;
  for (const RecordedTurn& recorded : RecordedTurns()) {
    auto format = std::make_shared<AnswerFormat>();
    format->format = FormatOf(recorded);
    format->options = OptionsOf(recorded);
    format->schemas = schemas;
    for (size_t length = 0; length <= recorded.text.size(); ++length) {
      if (length < recorded.text.size() && (recorded.text[length] & 0xC0) == 0x80) continue;
      const absl::string_view text = absl::string_view(recorded.text).substr(0, length);
      SCOPED_TRACE(absl::StrCat(recorded.title, ": ", text));
      const Answer answer = Read(format, text, "END");
      ASSERT_EQ(Show(Read(format, text, "END", /*piece=*/1)), Show(answer)) << "streamed";
      for (size_t i = 0; i < answer.turn.calls.size(); ++i) {
        const bool is_cut = answer.cuts_call && i + 1 == answer.turn.calls.size();
        (is_cut ? cut : whole) += 1;
        const std::string& arguments = answer.turn.calls[i].arguments;
        ASSERT_TRUE(is_cut || nlohmann::json::accept(arguments)) << arguments;
      }
      ASSERT_TRUE(!answer.cuts_call || !answer.turn.calls.empty());
    }
  }
  EXPECT_GT(cut, 500);
  EXPECT_GT(whole, 500);
}

}  // namespace
}  // namespace somnus
