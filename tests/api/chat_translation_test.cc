// From requests of the Responses API to chat requests: items, tools, forms, and the fields that are refused.

#include "coordinator/responses/chat_translation.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "coordinator/structured/gate_options.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

ResponsesRequest Read(const std::string& body, bool can_store = true) {
  ResponsesRequestOrError read = ReadResponsesRequest(body, {}, can_store, GateOptions().max_keys);
  if (const auto* error = std::get_if<ApiError>(&read)) {
    ADD_FAILURE() << error->message;
    return {};
  }
  return std::get<ResponsesRequest>(std::move(read));
}

// The chat request of a body; `before`: the turns of the conversation so far.
Json Chat(const std::string& body, const Conversation& before = {}) {
  return Json::parse(ChatBody(Read(body), before));
}

Json Echo(const std::string& body) { return Json::parse(absl::StrCat("{", Read(body).echo, "}")); }

ApiError Refusal(const std::string& body, bool can_store = true) {
  ResponsesRequestOrError read = ReadResponsesRequest(body, {}, can_store, GateOptions().max_keys);
  if (const auto* error = std::get_if<ApiError>(&read)) return *error;
  ADD_FAILURE() << "not refused: " << body;
  return {};
}

TEST(ChatTranslationTest, ATextIsAMessageOfTheUser) {
  const Json chat = Chat(R"({"model": "m", "input": "Hi", "max_output_tokens": 5, "temperature": 0.5})");
  EXPECT_EQ(chat, Json::parse(R"({"messages": [{"role": "user", "content": "Hi"}], "model": "m",
                                  "temperature": 0.5, "max_completion_tokens": 5})"));
}

TEST(ChatTranslationTest, ContentListsMayHavePlainStrings) {
  const Json chat = Chat(R"({"input": [
      {"role": "user", "content": ["a", {"type": "input_text", "text": "b"}]},
      {"type": "function_call_output", "call_id": "c", "output": ["d"]}]})");
  EXPECT_EQ(chat["messages"], Json::parse(R"([
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "d"}]}])"));
}

TEST(ChatTranslationTest, ItemsOfATurnBecomeAMessage) {
  const Json messages = Chat(R"({"instructions": "Be brief.", "input": [
      {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
      {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "ask"}]},
      {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
       "content": [{"type": "output_text", "text": "Wait.", "annotations": []}]},
      {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"},
      {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{\"a\": 1}"},
      {"type": "function_call_output", "call_id": "c1", "output": "sun"},
      {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
      {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "x"},
      {"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"}]})")["messages"];
  const Json expected = Json::parse(R"([
      {"role": "developer", "content": "Be brief."},
      {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
      {"role": "assistant", "content": [{"type": "text", "text": "Wait."}], "reasoning_content": "ask",
       "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                      {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{\"a\": 1}"}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "sun"},
      {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "rain"}]},
      {"role": "assistant", "content": null,
       "tool_calls": [{"id": "c3", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}])");
  ASSERT_EQ(messages.size(), expected.size()) << messages;
  // The order of keys says nothing here.
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(nlohmann::json(messages[i]), nlohmann::json(expected[i])) << i;
}

TEST(ChatTranslationTest, TwoTextsOfTheAssistantStayTwoMessages) {
  const Json messages = Chat(R"({"input": [{"role": "assistant", "content": "a"},
                                           {"role": "assistant", "content": "b"},
                                           {"role": "user", "content": "c"}]})")["messages"];
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[0]["content"], "a");
  EXPECT_EQ(messages[1]["content"], "b");
}

TEST(ChatTranslationTest, ToolsAndTheirChoice) {
  const std::string body = R"({"input": "x", "tool_choice": {"type": "function", "name": "f"},
      "parallel_tool_calls": false, "tools": [{"type": "function", "name": "f", "strict": true,
      "description": "d", "parameters": {"type": "object", "properties": {"b": {}, "a": {}}}}]})";
  const Json chat = Chat(body);
  EXPECT_EQ(chat["tools"], Json::parse(R"([{"type": "function", "function": {"name": "f", "description": "d",
      "parameters": {"type": "object", "properties": {"b": {}, "a": {}}}, "strict": true}}])"))
      << "in the order of the body";
  EXPECT_EQ(chat["tool_choice"], Json::parse(R"({"type": "function", "function": {"name": "f"}})"));
  EXPECT_EQ(chat["parallel_tool_calls"], false);
  EXPECT_EQ(Echo(body)["tools"][0]["name"], "f");
  const Json none = Chat(R"({"input": "x", "tools": [], "tool_choice": "auto"})");
  EXPECT_FALSE(none.contains("tools"));
  EXPECT_FALSE(none.contains("tool_choice"));
  EXPECT_EQ(Chat(R"({"input": "x", "tools": [{"type": "function", "name": "f"}], "tool_choice": "none"})")
                ["tool_choice"],
            "none");
}

TEST(ChatTranslationTest, FormsAndReasoning) {
  const Json chat = Chat(R"({"input": "x", "reasoning": {"effort": "low", "summary": "auto"},
      "text": {"verbosity": "low", "format": {"type": "json_schema", "name": "n", "strict": true,
      "schema": {"type": "object", "properties": {"z": {}, "a": {}}}}}})");
  EXPECT_EQ(chat["reasoning_effort"], "low");
  EXPECT_EQ(chat["response_format"].dump(), R"({"type":"json_schema","json_schema":{"name":"n","schema":)"
                                            R"({"type":"object","properties":{"z":{},"a":{}}}}})");
  EXPECT_EQ(Chat(R"({"input": "x", "text": {"format": {"type": "json_object"}}})")["response_format"],
            Json::parse(R"({"type": "json_object"})"));
  EXPECT_FALSE(Chat(R"({"input": "x", "text": {"format": {"type": "text"}}})").contains("response_format"));
}

TEST(ChatTranslationTest, LogprobsAreForRequestsThatIncludeThem) {
  const Json chat =
      Chat(R"({"input": "x", "include": ["message.output_text.logprobs", "reasoning.encrypted_content"]})");
  EXPECT_EQ(chat["logprobs"], true);
  EXPECT_EQ(Chat(R"({"input": "x", "top_logprobs": 2})")["logprobs"], true);
  EXPECT_FALSE(Chat(R"({"input": "x", "top_logprobs": 0})").contains("logprobs"));
}

TEST(ChatTranslationTest, EarlierTurnsComeBetweenInstructionsAndInput) {
  const Conversation before = {
      std::make_shared<std::string>(R"({"role":"user","content":"a"},{"role":"assistant","content":"b"})"),
      std::make_shared<std::string>(R"({"role":"user","content":"c"})")};
  const Json messages = Chat(R"({"instructions": "i", "input": "d"})", before)["messages"];
  std::string contents;
  for (const Json& message : messages) contents += message["content"].get<std::string>();
  EXPECT_EQ(contents, "iabcd");
}

TEST(ChatTranslationTest, AResponseRepeatsTheRequest) {
  const Json echo = Echo(R"({"input": "x", "metadata": {"k": "v"}, "max_output_tokens": 7,
                             "previous_response_id": "resp_1", "prompt_cache_key": "p"})");
  EXPECT_EQ(echo["metadata"], Json::parse(R"({"k": "v"})"));
  EXPECT_EQ(echo["max_output_tokens"], 7);
  EXPECT_EQ(echo["previous_response_id"], "resp_1");
  EXPECT_EQ(echo["prompt_cache_key"], "p");
  EXPECT_EQ(echo["tool_choice"], "auto");
  EXPECT_EQ(echo["parallel_tool_calls"], true);
  EXPECT_EQ(echo["text"], Json::parse(R"({"format": {"type": "text"}})"));
  EXPECT_EQ(echo["instructions"], nullptr);
  EXPECT_EQ(echo["store"], true);
}

TEST(ChatTranslationTest, FieldsThatAreRefusedAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "input"},
      {R"({"input": 7})", "input"},
      {R"({"input": [7]})", "input[0]"},
      {R"({"input": [{"role": "user", "content": "a"}, {"type": "web_search_call"}]})", "input[1].type"},
      {R"({"input": [{"type": "item_reference", "id": "msg_1"}]})", "input[0].type"},
      {R"({"input": [{"role": "tool", "content": "a"}]})", "input[0].role"},
      {R"({"input": [{"role": "user", "content": [{"type": "input_image"}]}]})", "input[0].content"},
      {R"({"input": [{"role": "user", "content": ["a", 7]}]})", "input[0].content"},
      {R"({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]})", "input[0].arguments"},
      {R"({"input": [{"type": "function_call_output", "call_id": "c"}]})", "input[0].output"},
      {R"({"input": "x", "instructions": ["a"]})", "instructions"},
      {R"({"input": "x", "tools": {}})", "tools"},
      {R"({"input": "x", "tools": [{"type": "web_search"}]})", "tools[0].type"},
      {R"({"input": "x", "tools": [{"type": "function"}]})", "tools[0].name"},
      {R"({"input": "x", "tools": [{"type": "function", "name": "f", "strict": 1}]})", "tools[0].strict"},
      {R"({"input": "x", "tool_choice": {"type": "allowed_tools"}})", "tool_choice"},
      {R"({"input": "x", "text": {"format": {"type": "grammar"}}})", "text.format.type"},
      {R"({"input": "x", "text": {"format": {"type": "json_schema", "name": "n"}}})", "text.format.schema"},
      {R"({"input": "x", "text": {"verbosity": "loud"}})", "text.verbosity"},
      {R"({"input": "x", "reasoning": {"effort": 3}})", "reasoning.effort"},
      {R"({"input": "x", "include": ["file_search_call.results"]})", "include"},
      {R"({"input": "x", "background": true})", "background"},
      {R"({"input": "x", "conversation": "conv_1"})", "conversation"},
      {R"({"input": "x", "prompt": {"id": "p"}})", "prompt"},
      {R"({"input": "x", "truncation": "auto"})", "truncation"},
      {R"({"input": "x", "context_management": [{}]})", "context_management"},
      {R"({"input": "x", "max_output_tokens": 0})", "max_output_tokens"},
      {R"({"input": "x", "max_tokens": 3})", "max_tokens"},
      {R"({"input": "x", "response_format": {"type": "json_object"}})", "response_format"},
      {R"({"messages": [{"role": "user", "content": "x"}]})", "messages"},
      {R"({"input": "x", "grammar": "root ::= x"})", "grammar"},
      {R"({"input": "x", "json_schema": {}})", "json_schema"},
      {R"({"input": "x", "ebnf": "root ::= x"})", "ebnf"},
      {R"({"input": "x", "regex": "a+"})", "regex"},
      {R"({"input": "x", "structural_tag": {}})", "structural_tag"},
      {R"({"input": "x", "metadata": {"k": 1}})", "metadata"},
      {R"({"input": "x", "previous_response_id": ""})", "previous_response_id"}};
  for (const auto& [body, param] : cases) {
    const ApiError error = Refusal(body);
    EXPECT_EQ(error.status, 400) << body;
    EXPECT_EQ(error.param, param) << body << ": " << error.message;
  }
}

TEST(ChatTranslationTest, AServerThatKeepsNothingSaysSo) {
  EXPECT_EQ(Refusal(R"({"input": "x", "store": true})", /*can_store=*/false).param, "store");
  EXPECT_FALSE(Read(R"({"input": "x"})", /*can_store=*/false).store);
  EXPECT_TRUE(Read(R"({"input": "x"})").store);
  EXPECT_FALSE(Read(R"({"input": "x", "store": false})").store);
}

TEST(ChatTranslationTest, AnObjectWithVeryManyKeysIsRefused) {
  std::string properties;
  for (int i = 0; i < 5000; ++i) absl::StrAppend(&properties, i == 0 ? "" : ",", "\"k", i, "\":{}");
  const ApiError error = Refusal(
      absl::StrCat(R"({"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": {)",
                   properties, "}}}}"));
  EXPECT_EQ(error.message, "The body has an object with more than 4096 keys");
}

TEST(ChatTranslationTest, ErrorsOfTheChatRouteHaveTheNamesOfThisRoute) {
  const ApiError length = InResponsesNames(
      BadRequest("max_completion_tokens", "max_completion_tokens must be at most the context"));
  EXPECT_EQ(length.param, "max_output_tokens");
  EXPECT_EQ(length.message, "max_output_tokens must be at most the context");
  EXPECT_EQ(InResponsesNames(BadRequest("messages", "The chat template refused")).param, "input");
  EXPECT_EQ(InResponsesNames(BadRequest("temperature", "t")).param, "temperature");
  EXPECT_EQ(InResponsesNames(BadRequest("/tools/2/function/parameters/not", "")).param,
            "/tools/2/parameters/not");
}

}  // namespace
}  // namespace somnus
