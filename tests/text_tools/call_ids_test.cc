#include "text/tools/call_ids.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

Json Conversation() {
  return Json::parse(R"([
    {"role": "user", "content": "q"},
    {"role": "assistant", "tool_calls": [{"id": "call_a", "function": {"name": "f"}}, {"id": "abcdefGH1", "function": {"name": "g"}}]},
    {"role": "tool", "tool_call_id": "call_a", "content": "1"},
    {"role": "tool", "tool_call_id": "abcdefGH1", "content": "2"},
    {"role": "assistant", "tool_calls": [{"id": "call_b", "function": {"name": "f"}}]},
    {"role": "tool", "tool_call_id": "call_b", "content": "3"}, 5, {"role": "tool", "tool_call_id": 7}])");
}

TEST(CallIdsTest, AreMadeInTheStyle) {
  EXPECT_TRUE(absl::StartsWith(CallIdMaker(CallIdStyle::kRandom, 0)("f", 0), "call_"));
  EXPECT_NE(CallIdMaker(CallIdStyle::kRandom, 0)("f", 0), CallIdMaker(CallIdStyle::kRandom, 0)("f", 0));
  EXPECT_EQ(CallIdMaker(CallIdStyle::kNineAlphanumeric, 0)("f", 0).size(), 9u);
  EXPECT_EQ(CallIdMaker(CallIdStyle::kFunctionIndex, 3)("f", 1), "functions.f:4");
}

TEST(CallIdsTest, AreCounted) { EXPECT_EQ(CountCalls(Conversation()), 3); }

TEST(NormalizeCallIdsTest, AnyIdIsRandomEnough) {
  Json messages = Conversation();
  NormalizeCallIds(CallIdStyle::kRandom, &messages);
  EXPECT_EQ(messages, Conversation());
}

TEST(NormalizeCallIdsTest, KimiCountsOverTheConversation) {
  Json messages = Conversation();
  NormalizeCallIds(CallIdStyle::kFunctionIndex, &messages);
  EXPECT_EQ(messages[1]["tool_calls"][1]["id"], "functions.g:1");
  EXPECT_EQ(messages[3]["tool_call_id"], "functions.g:1");
  EXPECT_EQ(messages[4]["tool_calls"][0]["id"], "functions.f:2");
  EXPECT_EQ(messages[5]["tool_call_id"], "functions.f:2");
}

TEST(NormalizeCallIdsTest, MistralTakesNineLettersAndDigits) {
  Json messages = Conversation();
  NormalizeCallIds(CallIdStyle::kNineAlphanumeric, &messages);
  const std::string id = messages[1]["tool_calls"][0]["id"];
  EXPECT_EQ(id.size(), 9u);
  EXPECT_EQ(messages[2]["tool_call_id"], id);
  EXPECT_NE(messages[5]["tool_call_id"], id);
  EXPECT_EQ(messages[3]["tool_call_id"], "abcdefGH1");
  EXPECT_EQ(messages[7], Conversation()[7]);
}

}  // namespace
}  // namespace somnus
