// Turns of GPT-OSS and of Mistral's models, taken apart or written by the vendors' libraries
// (tests/data/make_turn_goldens.py), whole and byte by byte.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/text_tools/recorded_turns.h"
#include "text/tools/turn_parser.h"

namespace somnus {
namespace {

using Json = nlohmann::json;

// `piece`: bytes that the parser gets at once. Arguments of one spelling or another are one value.
Json TurnOf(const Json& golden, size_t piece) {
  RecordedTurn recorded{.tools = golden["tools"], .reasoning = golden["reasoning_format"]};
  const std::string text = golden["text"];
  const ToolSchemas schemas(RecordedTools());
  TurnParser parser(FormatOf(recorded), &schemas, OptionsOf(recorded));
  ParsedTurn turn;
  for (size_t at = 0; at < text.size(); at += piece)
    turn.Add(parser.Feed(absl::string_view(text).substr(at, piece)));
  turn.Add(parser.Finish(TurnEnd::kCut));
  Json calls = Json::array();
  for (const ParsedTurn::Call& call : turn.calls) {
    const Json value = Json::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
    calls.push_back({call.name, value.is_discarded() ? Json(call.arguments) : value});
  }
  return {{"reasoning", turn.reasoning}, {"content", turn.content}, {"calls", calls}};
}

TEST(TurnGoldensTest, TurnsAreThoseOfTheVendorsLibraries) {
  std::ifstream file("tests/data/tool_turns.jsonl");
  int count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const Json golden = Json::parse(line);
    Json expected = {
        {"reasoning", golden["reasoning"]}, {"content", golden["content"]}, {"calls", golden["calls"]}};
    for (Json& call : expected["calls"]) {
      if (!call[1].is_string()) continue;
      const Json value = Json::parse(call[1].get<std::string>(), nullptr, /*allow_exceptions=*/false);
      if (!value.is_discarded()) call[1] = value;
    }
    for (const size_t piece : {size_t{1}, size_t{7}, size_t{1} << 20})
      EXPECT_EQ(TurnOf(golden, piece), expected) << golden["text"] << " in pieces of " << piece;
  }
  EXPECT_EQ(count, 30);
}

}  // namespace
}  // namespace somnus
