#include "text/tools/turn_parser.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "tests/text_tools/recorded_turns.h"

namespace somnus {
namespace {

using Kind = TurnEvent::Kind;

const ToolSchemas& Schemas() {
  static const auto* const schemas = new ToolSchemas(RecordedTools(), /*keeps_schemas=*/true);
  return *schemas;
}

// Joins text of one kind that comes in several events.
std::vector<TurnEvent> Joined(const std::vector<TurnEvent>& events) {
  TurnEvents joined;
  for (const TurnEvent& event : events) {
    if (event.kind == Kind::kCallBegin) {
      joined.AddBegin(event.call, event.id, event.name);
    } else if (event.kind == Kind::kCallEnd) {
      joined.AddEnd(event.call, event.is_cut);
    } else {
      EXPECT_FALSE(event.text.empty());
      EXPECT_TRUE(IsUtf8(event.text)) << event.text;
      joined.AddText(event.kind, event.text, event.call);
    }
  }
  return joined.TakeAll();
}

std::vector<TurnEvent> Parse(const RecordedTurn& recorded, const std::vector<absl::string_view>& pieces,
                             TurnEnd end = TurnEnd::kStop) {
  TurnParser parser(FormatOf(recorded), &Schemas(), OptionsOf(recorded));
  std::vector<TurnEvent> events;
  for (const absl::string_view piece : pieces) {
    for (TurnEvent& event : parser.Feed(piece)) events.push_back(std::move(event));
  }
  for (TurnEvent& event : parser.Finish(end)) events.push_back(std::move(event));
  return Joined(events);
}

ParsedTurn Whole(const RecordedTurn& recorded, absl::string_view text, TurnEnd end) {
  ParsedTurn turn;
  turn.Add(Parse(recorded, {text}, end));
  return turn;
}

std::string Show(const ParsedTurn& turn) {
  std::string text = absl::StrCat("reasoning: ", turn.reasoning, "\ncontent: ", turn.content, "\n");
  for (const ParsedTurn::Call& call : turn.calls) {
    absl::StrAppend(&text, call.id, " ", call.name, " ", call.arguments, "\n");
  }
  return text;
}

class RecordedTurnTest : public testing::TestWithParam<RecordedTurn> {};

TEST_P(RecordedTurnTest, ConsistsOf) {
  EXPECT_EQ(Show(Whole(GetParam(), GetParam().text, TurnEnd::kStop)), Show(GetParam().turn));
}

TEST_P(RecordedTurnTest, IsTheSameInTwoPieces) {
  const absl::string_view text = GetParam().text;
  const std::vector<TurnEvent> whole = Parse(GetParam(), {text});
  for (size_t at = 0; at <= text.size(); ++at) {
    ASSERT_EQ(Parse(GetParam(), {text.substr(0, at), text.substr(at)}), whole) << "cut at " << at;
  }
}

TEST_P(RecordedTurnTest, IsTheSameByteByByte) {
  const absl::string_view text = GetParam().text;
  std::vector<absl::string_view> bytes;
  for (size_t at = 0; at < text.size(); ++at) bytes.push_back(text.substr(at, 1));
  EXPECT_EQ(Parse(GetParam(), bytes), Parse(GetParam(), {text}));
}

// A prefix of the text gives a prefix of the calls, and of the content, perhaps with the begin of a marker.
TEST_P(RecordedTurnTest, LosesNothingWhenCut) {
  const absl::string_view text = GetParam().text;
  const ParsedTurn whole = Whole(GetParam(), text, TurnEnd::kCut);
  for (size_t length = 0; length <= text.size(); ++length) {
    if (length < text.size() && (text[length] & 0xC0) == 0x80) continue;  // inside of a character
    const absl::string_view prefix = text.substr(0, length);
    const ParsedTurn cut = Whole(GetParam(), prefix, TurnEnd::kCut);
    SCOPED_TRACE(absl::StrCat("cut at ", length, "\n", Show(cut)));
    ASSERT_LE(cut.calls.size(), whole.calls.size());
    for (size_t i = 0; i < cut.calls.size(); ++i) {
      ASSERT_EQ(cut.calls[i].name, whole.calls[i].name);
      const std::string& arguments = whole.calls[i].arguments;
      ASSERT_EQ(cut.calls[i].arguments.substr(0, arguments.size()),
                arguments.substr(0, cut.calls[i].arguments.size()));
    }
    size_t same = 0;
    while (same < cut.content.size() && same < whole.content.size() &&
           cut.content[same] == whole.content[same])
      ++same;
    ASSERT_TRUE(absl::EndsWith(prefix, cut.content.substr(same)));
  }
}

std::string TestName(const testing::TestParamInfo<RecordedTurn>& info) {
  std::string name;
  for (const char c : info.param.title) {
    if (absl::ascii_isalnum(c)) name += c;
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, RecordedTurnTest, testing::ValuesIn(RecordedTurns()), TestName);

TEST(RecordedTurnsTest, EveryFormatIsRecorded) {
  for (const ToolFormat& format : ToolFormats()) {
    bool found = false;
    for (const RecordedTurn& turn : RecordedTurns()) found = found || FormatOf(turn).tools == &format;
    EXPECT_TRUE(found) << format.name;
  }
  for (const ReasoningFormat& format : ReasoningFormats()) {
    bool found = false;
    for (const RecordedTurn& turn : RecordedTurns()) found = found || FormatOf(turn).reasoning == &format;
    EXPECT_TRUE(found) << format.name;
  }
}

// Whether a marker of the format's calls stands in the text.
bool HasMarker(const ToolFormat& format, absl::string_view text) {
  std::vector<absl::string_view> markers = {format.section_begin, format.section_end, format.tags.value_begin,
                                            format.tags.value_end};
  markers.insert(markers.end(), format.call_begin.begin(), format.call_begin.end());
  markers.insert(markers.end(), format.call_end.begin(), format.call_end.end());
  if (format.body == CallBody::kHarmony) markers.push_back("<|message|>");
  if (format.body == CallBody::kPythonic) markers.push_back("()]");
  return absl::c_any_of(markers, [text](absl::string_view marker) {
    return !marker.empty() && absl::StrContains(text, marker);
  });
}

// Sorts a turn into the classes that the families below must all have.
std::set<std::string> ClassesOf(const RecordedTurn& recorded) {
  const ToolFormat& format = *FormatOf(recorded).tools;
  const ParsedTurn& turn = recorded.turn;
  if (turn.calls.empty()) return {"no call"};
  std::set<std::string> classes;
  if (turn.calls.size() >= 2) classes.insert("two calls");
  if (HasMarker(format, turn.reasoning)) classes.insert("a marker in reasoning");
  for (const ParsedTurn::Call& call : turn.calls) {
    if (HasMarker(format, call.arguments)) classes.insert("a marker in a string");
  }
  if (turn.content.empty()) return classes;
  const absl::string_view text = recorded.text, content = absl::StripAsciiWhitespace(turn.content);
  if (text.rfind(content.substr(0, 4), text.find(turn.calls[0].name)) != absl::string_view::npos)
    classes.insert("text before");
  if (text.find(content.substr(content.size() - 4), text.rfind(turn.calls.back().name)) !=
      absl::string_view::npos)
    classes.insert("text after");
  return classes;
}

TEST(RecordedTurnsTest, FamiliesHaveTurnsOfEveryClass) {
  // Formats of the families that most models belong to, and whether these models reason in a form of text.
  const std::pair<const char*, bool> families[] = {
      {"hermes", true},         {"qwen3_coder", true}, {"llama3_json", false}, {"pythonic", false},
      {"mistral", true},        {"mistral_v11", true}, {"deepseek_v3", true},  {"deepseek_v31", true},
      {"glm45", true},          {"openai", true},      {"gemma4", true},       {"granite", true},
      {"phi4_mini_json", false}};
  for (const auto& [name, reasons] : families) {
    const ToolFormat* const format = FindToolFormat(name);
    ASSERT_NE(format, nullptr) << name;
    std::set<std::string> found;
    for (const RecordedTurn& recorded : RecordedTurns()) {
      if (FormatOf(recorded).tools == format) found.merge(ClassesOf(recorded));
    }
    for (const char* wanted : {"no call", "two calls", "a marker in a string", "text after"})
      EXPECT_TRUE(found.contains(wanted)) << name << " has no turn of the class: " << wanted;
    EXPECT_EQ(found.contains("a marker in reasoning"), reasons) << name;
    // A list of calls without a marker counts as calls only at the beginning of the turn.
    EXPECT_EQ(found.contains("text before"), format->body != CallBody::kPythonic) << name;
  }
}

TEST(TurnParserTest, StreamsArgumentsAsTheyCome) {
  TurnParser parser({.tools = FindToolFormat("qwen3_coder")}, &Schemas(), OptionsOf({}));
  EXPECT_TRUE(parser.Feed("<tool_call>\n<function=ru").empty());
  const std::vector<TurnEvent> begin = parser.Feed("n>\n<parameter=code>\nfirst");
  ASSERT_EQ(begin.size(), 2u);
  EXPECT_EQ(begin[0].name, "run");
  EXPECT_EQ(begin[1].text, "{\"code\": \"first");
  const std::vector<TurnEvent> rest = parser.Feed("\nsecond\n");
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].text, "\\nsecond");
}

TEST(TurnParserTest, SaysWhetherTheNextTokenIsReasoning) {
  TurnParser parser({.reasoning = FindReasoningFormat("qwen3")}, nullptr);
  EXPECT_FALSE(parser.in_reasoning());
  parser.Feed("<think>");
  EXPECT_TRUE(parser.in_reasoning());
  parser.Feed("a</think");
  EXPECT_TRUE(parser.in_reasoning());
  parser.Feed(">");
  EXPECT_FALSE(parser.in_reasoning());
}

TEST(TurnParserTest, TextThatCannotBeACallIsNotHeldBack) {
  TurnParser parser({.tools = FindToolFormat("hermes")}, &Schemas());
  EXPECT_EQ(parser.Feed("Hello").at(0).text, "Hello");
  EXPECT_EQ(parser.Feed(" <tool").size(), 0u);
  EXPECT_EQ(parser.Feed("box>").at(0).text, " <toolbox>");
}

TEST(TurnParserTest, CallsBeyondTheLimitAreContent) {
  RecordedTurn recorded{.tools = "mistral_v11", .text = "[TOOL_CALLS]a[ARGS]{}[TOOL_CALLS]b[ARGS]{}"};
  TurnOptions options = OptionsOf(recorded);
  options.limits.max_calls = 1;
  const ParsedTurn turn = ParseTurn(FormatOf(recorded), &Schemas(), recorded.text, TurnEnd::kStop, options);
  EXPECT_EQ(Show(turn), "reasoning: \ncontent: [TOOL_CALLS]b[ARGS]{}\nid0 a {}\n");
}

TEST(TurnParserTest, ArgumentsBeyondTheLimitEndTheCall) {
  for (const char* name : {"hermes", "mistral_v11", "pythonic", "qwen3_coder", "glm45", "gemma4"}) {
    TurnOptions options = OptionsOf({});
    options.limits.max_argument_bytes = 100;
    const std::string text(1000, 'x');
    const std::string turn_text = absl::StrCat(
        name == std::string("hermes")        ? "<tool_call>{\"name\": \"run\", \"arguments\": {\"code\": \""
        : name == std::string("mistral_v11") ? "[TOOL_CALLS]run[ARGS]{\"code\": \""
        : name == std::string("pythonic")    ? "[run(code=\""
        : name == std::string("qwen3_coder") ? "<function=run><parameter=code>"
        : name == std::string("glm45")       ? "<tool_call>get_weather<arg_key>tags</arg_key><arg_value>"
                                             : "<|tool_call>call:run{code:<|\"|>",
        text);
    const ParsedTurn turn =
        ParseTurn({.tools = FindToolFormat(name)}, &Schemas(), turn_text, TurnEnd::kStop, options);
    ASSERT_EQ(turn.calls.size(), 1u) << name;
    EXPECT_LT(turn.calls[0].arguments.size(), 250u) << name;
    EXPECT_GT(turn.content.size(), 800u) << name;
  }
}

TEST(TurnParserTest, NestingBeyondTheLimitEndsTheCall) {
  const std::string deep(100000, '[');
  for (const char* begin :
       {"[TOOL_CALLS]run[ARGS]{\"code\": ", "[TOOL_CALLS][{\"name\": \"run\", \"arguments\": {\"code\": "}) {
    const ParsedTurn turn = ParseTurn({.tools = FindToolFormat("mistral_v11")}, &Schemas(),
                                      absl::StrCat(begin, deep), TurnEnd::kStop, OptionsOf({}));
    ASSERT_EQ(turn.calls.size(), 1u);
    EXPECT_LT(turn.calls[0].arguments.size(), 400u);
    EXPECT_GT(turn.content.size(), 99000u);
  }
}

// An element at depth d leaves d levels less to the JSON in its text.
TEST(TurnParserTest, ElementsAndTheJsonInThemShareOneBoundOfNesting) {
  constexpr absl::string_view kMarker = "]<]minimax[>[";
  TurnOptions options = OptionsOf({});
  options.limits.max_depth = 4;
  for (const auto& [value, written] :
       {std::pair("[[[1]]]", "[[[1]]]"), std::pair("[[[[1]]]]", "\"[[[[1]]]]\"")}) {
    const std::string text = absl::StrCat(kMarker, "<tool_call>", kMarker, "<invoke name=\"get_nested\">",
                                          kMarker, "<outer>", kMarker, "<inner>", value, kMarker, "</inner>",
                                          kMarker, "</outer>", kMarker, "</invoke>");
    const ToolSchemas schemas(
        {{"get_nested",
          nlohmann::ordered_json::parse(
              R"({"properties": {"outer": {"properties": {"inner": {"type": ["array", "string"]}}}}})")}},
        /*keeps_schemas=*/true);
    const ParsedTurn turn =
        ParseTurn({.tools = FindToolFormat("minimax_m3")}, &schemas, text, TurnEnd::kStop, options);
    ASSERT_EQ(turn.calls.size(), 1u);
    EXPECT_EQ(turn.calls[0].arguments, absl::StrCat("{\"outer\": {\"inner\": ", written, "}}"));
  }
}

// Every format converts values to JSON that parses; formats that write JSON pass the text on.
TEST(TurnParserTest, ArgumentsAreJson) {
  for (const RecordedTurn& recorded : RecordedTurns()) {
    for (const ParsedTurn::Call& call : Whole(recorded, recorded.text, TurnEnd::kStop).calls) {
      EXPECT_TRUE(nlohmann::json::accept(call.arguments)) << recorded.title << ": " << call.arguments;
    }
  }
}

TEST(StartsInReasoningTest, LooksAtTheEndOfThePrompt) {
  const ReasoningFormat& think = *FindReasoningFormat("qwen3");
  EXPECT_TRUE(StartsInReasoning(think, "<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(StartsInReasoning(think, "<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(StartsInReasoning(think, "user: what is <think>?\nassistant:"));
  EXPECT_FALSE(StartsInReasoning(think, "assistant: "));
  EXPECT_TRUE(StartsInReasoning(think, "assistant: <think>I am not do", /*continues=*/true));
  EXPECT_FALSE(StartsInReasoning(think, "assistant: <think>x</think>I am not do", /*continues=*/true));
  const ReasoningFormat& r1 = *FindReasoningFormat("deepseek_r1");
  EXPECT_TRUE(StartsInReasoning(r1, "<｜Assistant｜>"));
  EXPECT_FALSE(StartsInReasoning(r1, "<｜Assistant｜><think>\n</think>\n"));
  EXPECT_TRUE(StartsInReasoning(*FindReasoningFormat("gemma4"), "model\n<|channel>thought\n"));
}

TEST(JsonOfTextTest, FollowsTheSchema) {
  EXPECT_EQ(JsonOfText("5", kStringType, 9), "\"5\"");
  EXPECT_EQ(JsonOfText(" 5\n", kNumberType, 9), "5");
  EXPECT_EQ(JsonOfText("05", kNumberType, 9), "\"05\"");
  EXPECT_EQ(JsonOfText("5", kNumberType | kStringType, 9), "5");
  EXPECT_EQ(JsonOfText("null", kStringType, 9), "\"null\"");
  EXPECT_EQ(JsonOfText("null", kStringType | kNullType, 9), "null");
  EXPECT_EQ(JsonOfText("FALSE", kBooleanType, 9), "false");
  EXPECT_EQ(JsonOfText("[1, 'a', None]", kArrayType, 9), "[1, \"a\", null]");
  EXPECT_EQ(JsonOfText("[[1]]", kArrayType, 1), "\"[[1]]\"");
  EXPECT_EQ(JsonOfText("{\"a\": 1}", kObjectType, 9), "{\"a\": 1}");
  EXPECT_EQ(JsonOfText("{a", kObjectType, 9), "\"{a\"");
}

}  // namespace
}  // namespace somnus
