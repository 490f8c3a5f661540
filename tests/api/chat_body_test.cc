// A Messages request becomes the body of a chat request, and the calls of the answer get inputs.

#include "coordinator/messages/chat_body.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/messages/messages_error.h"
#include "coordinator/messages/tool_input.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

constexpr ChatBodyOptions kOptions = {.can_reason = true, .context = 4096, .max_schema_keys = 4096};

// The chat request of a Messages request with these fields beside max_tokens.
Json Chat(const std::string& fields, const ChatBodyOptions& options = kOptions) {
  const BodyOrError chat = ToChatBody(absl::StrCat(R"({"max_tokens": 9, )", fields, "}"), {}, options);
  const auto* error = std::get_if<ApiError>(&chat);
  EXPECT_EQ(error, nullptr) << (error == nullptr ? "" : MessageWithParam(*error)) << " of " << fields;
  return error == nullptr ? Json::parse(std::get<std::string>(chat)) : Json();
}
// The messages of the chat request.
Json Conversation(const std::string& messages) {
  return Chat(absl::StrCat(R"("messages": )", messages))["messages"];
}
// The field that is refused, in a request with these fields.
std::string Refused(const std::string& body) {
  const BodyOrError chat = ToChatBody(body, {}, kOptions);
  const auto* error = std::get_if<ApiError>(&chat);
  return error == nullptr ? "nothing" : error->param;
}

constexpr char kHello[] = R"("messages": [{"role": "user", "content": "Hello"}])";

TEST(ChatBody, FieldsThatMeanTheSame) {
  const Json chat = Chat(absl::StrCat(
      kHello,
      R"(, "model": "m", "system": "Be brief.", "temperature": 0.5, "top_p": 0.9, "top_k": 4, "stream": true,
         "stop_sequences": ["a", "b"], "metadata": {"user_id": "u"}, "service_tier": "auto")"));
  EXPECT_EQ(chat["messages"], Json::parse(R"([{"role": "system", "content": "Be brief."},
                                              {"role": "user", "content": "Hello"}])"));
  EXPECT_EQ(chat["model"], "m");
  EXPECT_EQ(chat["temperature"], 0.5);
  EXPECT_EQ(chat["top_p"], 0.9);
  EXPECT_EQ(chat["top_k"], 4);
  EXPECT_EQ(chat["stream"], true);
  EXPECT_EQ(chat["stop"], Json({"a", "b"}));
  EXPECT_EQ(chat["user"], "u");
  EXPECT_EQ(chat["max_tokens"], 9);
  EXPECT_FALSE(chat.contains("service_tier"));
}

// Fields of the chat route that choose tokens, though Anthropic has none of them.
TEST(ChatBody, FieldsThatChooseTokensAreNotIgnored) {
  const Json given = Json::parse(
      R"({"min_p": 0.1, "presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.5,
          "min_tokens": 2, "ignore_eos": true, "stop_token_ids": [5], "allowed_token_ids": [97, 98],
          "bad_words": ["no"], "logit_bias": {"97": 1}})");
  const std::string fields = given.dump();
  const Json chat = Chat(absl::StrCat(kHello, ", ", fields.substr(1, fields.size() - 2)));
  for (const auto& [name, value] : given.items()) EXPECT_EQ(chat[name], value) << name;
}

TEST(ChatBody, ContentListsMayHavePlainStringsAndTextsOfOtherApis) {
  EXPECT_EQ(Conversation(R"([{"role": "user", "content": ["a", {"type": "input_text", "text": "b"}]},
                             {"role": "assistant", "content": ["c", {"type": "output_text", "text": "d"}]},
                             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t",
                                                           "content": ["e", {"type": "text", "text": "f"}]}]}])"),
            Json::parse(R"([{"role": "user", "content": "a\nb"}, {"role": "assistant", "content": "cd"},
                            {"role": "tool", "tool_call_id": "t", "content": "e\nf"}])"));
  const Json chat = Chat(absl::StrCat(kHello, R"(, "system": ["g", {"type": "text", "text": "h"}])"));
  EXPECT_EQ(chat["messages"][0], Json::parse(R"({"role": "system", "content": "g\nh"})"));
}

// A schema that was cut without a word would be another schema.
TEST(ChatBody, AnObjectOfASchemaKeepsAMemberMoreThanTheGateTakes) {
  std::vector<std::string> members;
  for (int i = 0; i < 5000; ++i) members.push_back(absl::StrCat("\"p", i, "\": {}"));
  const std::string fields = absl::StrCat(
      kHello, R"(, "output_config": {"format": {"type": "json_schema", "schema": {"properties": {)",
      absl::StrJoin(members, ","), "}}}}");
  for (const int32_t most : {16, 4096, 6000}) {
    ChatBodyOptions options = kOptions;
    options.max_schema_keys = most;
    const Json schema = Chat(fields, options)["response_format"]["json_schema"]["schema"];
    EXPECT_EQ(schema["properties"].size(), std::min(5000, most + 1));
  }
}

TEST(ChatBody, MaxTokensIsABoundThatMayBeAboveTheContext) {
  const BodyOrError chat = ToChatBody(absl::StrCat(R"({"max_tokens": 64000, )", kHello, "}"), {}, kOptions);
  EXPECT_EQ(Json::parse(std::get<std::string>(chat))["max_tokens"], 4096);
}

TEST(ChatBody, BlocksOfTheSystemPromptWithoutTheLineThatChangesEachTime) {
  const Json chat = Chat(absl::StrCat(kHello, R"(, "system": [
      {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=4711;"},
      {"type": "text", "text": "One.", "cache_control": {"type": "ephemeral"}},
      {"type": "text", "text": "Two."}])"));
  EXPECT_EQ(chat["messages"][0], Json::parse(R"({"role": "system", "content": "One.\nTwo."})"));
}

TEST(ChatBody, ResultsOfToolsAreMessages) {
  const Json messages = Conversation(R"([
      {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
      {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "I ask.", "signature": "s"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "One moment."},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"z": 1, "a": [2]}},
        {"type": "tool_use", "id": "t2", "name": "g", "input": {}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"},
        {"type": "tool_result", "tool_use_id": "t2", "is_error": true,
         "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "way"}]},
        {"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral"}}]}])");
  EXPECT_EQ(messages.dump(), Json::parse(R"([
      {"role": "user", "content": "Weather?"},
      {"role": "assistant", "content": "One moment.", "reasoning_content": "I ask.", "tool_calls": [
        {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"z": 1, "a": [2]}}},
        {"id": "t2", "type": "function", "function": {"name": "g", "arguments": {}}}]},
      {"role": "tool", "tool_call_id": "t1", "content": "sunny"},
      {"role": "tool", "tool_call_id": "t2", "content": "Error: no\nway"},
      {"role": "user", "content": "Go on."}])")
                                 .dump())
      << "with the keys of an input in their order";
}

TEST(ChatBody, TurnsOfOneRoleAreOneTurn) {
  EXPECT_EQ(Conversation(R"([{"role": "user", "content": "a"}, {"role": "user", "content": "b"},
                             {"role": "assistant", "content": "c"},
                             {"role": "assistant", "content": [{"type": "text", "text": "d"}]},
                             {"role": "user", "content": "e"}])"),
            Json::parse(R"([{"role": "user", "content": "a\nb"}, {"role": "assistant", "content": "c\nd"},
                            {"role": "user", "content": "e"}])"));
}

TEST(ChatBody, ALastTurnOfTheAssistantGoesOn) {
  const Json chat =
      Chat(R"("messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "The"}])");
  EXPECT_EQ(chat["continue_final_message"], true);
  EXPECT_EQ(chat["add_generation_prompt"], false);
  EXPECT_FALSE(Chat(kHello).contains("continue_final_message"));
}

TEST(ChatBody, Tools) {
  const std::string tools = absl::StrCat(kHello, R"(, "tools": [
      {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {"z": {}, "a": {}}},
       "strict": true, "cache_control": {"type": "ephemeral"}},
      {"type": "custom", "name": "g", "input_schema": {"type": "object"}}])");
  const Json chat = Chat(tools);
  EXPECT_EQ(chat["tools"].dump(), Json::parse(R"([
      {"type": "function", "function": {"name": "f", "description": "d", "strict": true,
       "parameters": {"type": "object", "properties": {"z": {}, "a": {}}}}},
      {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}])")
                                      .dump());
  EXPECT_FALSE(chat.contains("tool_choice"));
  const auto choice = [&](const std::string& fields) {
    return Chat(absl::StrCat(tools, R"(, "tool_choice": )", fields));
  };
  EXPECT_EQ(choice(R"({"type": "auto"})")["tool_choice"], "auto");
  EXPECT_EQ(choice(R"({"type": "none"})")["tool_choice"], "none");
  EXPECT_EQ(choice(R"({"type": "any"})")["tool_choice"], "required");
  EXPECT_FALSE(choice(R"({"type": "any"})").contains("parallel_tool_calls"));
  const Json named = choice(R"({"type": "tool", "name": "g", "disable_parallel_tool_use": true})");
  EXPECT_EQ(named["tool_choice"], Json::parse(R"({"type": "function", "function": {"name": "g"}})"));
  EXPECT_EQ(named["parallel_tool_calls"], false);
  const Json none = Chat(absl::StrCat(kHello, R"(, "tools": [], "tool_choice": {"type": "auto"})"));
  EXPECT_FALSE(none.contains("tools"));
  EXPECT_FALSE(none.contains("tool_choice"));
}

TEST(ChatBody, ThinkingIsOffUnlessTheRequestAsks) {
  const Json off = Chat(kHello);
  EXPECT_EQ(off["chat_template_kwargs"], Json::parse(R"({"enable_thinking": false, "thinking": false})"));
  EXPECT_EQ(off["include_reasoning"], false);
  const std::string enabled =
      absl::StrCat(kHello, R"(, "thinking": {"type": "enabled", "budget_tokens": 2000})");
  const Json on = Chat(enabled);
  EXPECT_EQ(on["chat_template_kwargs"], Json::parse(R"({"enable_thinking": true, "thinking": true})"));
  EXPECT_EQ(on["include_reasoning"], true);
  EXPECT_EQ(on["thinking_token_budget"], 2000);
  EXPECT_FALSE(Chat(enabled, {.can_reason = false, .context = 4096}).contains("thinking_token_budget"))
      << "a model that does not think is within any budget";
  const Json adaptive =
      Chat(absl::StrCat(kHello, R"(, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
                 "chat_template_kwargs": {"enable_thinking": false})"));
  EXPECT_EQ(adaptive["include_reasoning"], true);
  EXPECT_EQ(adaptive["reasoning_effort"], "high");
  EXPECT_FALSE(adaptive.contains("thinking_token_budget"));
  EXPECT_EQ(adaptive["chat_template_kwargs"], Json::parse(R"({"enable_thinking": false, "thinking": true})"));
}

TEST(ChatBody, TheFormatOfTheAnswer) {
  const std::string format =
      R"({"type": "json_schema", "schema": {"type": "object", "properties": {"z": {}, "a": {}}}})";
  for (const std::string& field : {absl::StrCat(R"("output_config": {"format": )", format, "}"),
                                   absl::StrCat(R"("output_format": )", format)}) {
    const Json chat = Chat(absl::StrCat(kHello, ", ", field));
    EXPECT_EQ(chat["response_format"]["json_schema"]["schema"].dump(),
              R"({"type":"object","properties":{"z":{},"a":{}}})");
    EXPECT_EQ(chat["response_format"]["type"], "json_schema");
  }
}

TEST(ChatBody, ACountNeedsNoLength) {
  const BodyOrError chat = ToChatBody(absl::StrCat("{", kHello, R"(, "temperature": "warm"})"), {},
                                      {.context = 4096, .counts_only = true});
  const Json json = Json::parse(std::get<std::string>(chat));
  EXPECT_EQ(json["messages"][0]["content"], "Hello");
  EXPECT_FALSE(json.contains("max_tokens"));
}

TEST(ChatBody, RefusalsNameTheField) {
  EXPECT_EQ(Refused(absl::StrCat("{", kHello, "}")), "max_tokens");
  const auto refused = [](const std::string& fields) {
    return Refused(absl::StrCat(R"({"max_tokens": 1, )", fields, "}"));
  };
  EXPECT_EQ(refused(R"("system": "a")"), "messages");
  EXPECT_EQ(refused(R"("messages": [])"), "messages");
  EXPECT_EQ(refused(R"("messages": [{"role": "robot", "content": "a"}])"), "messages[0].role");
  EXPECT_EQ(refused(R"("messages": [{"role": "user"}])"), "messages[0].content");
  const auto block = [&](const std::string& json) {
    return refused(absl::StrCat(
        R"("messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, )", json, "]}]"));
  };
  EXPECT_EQ(block(R"({"type": "image", "source": {}})"), "messages[0].content[1]");
  EXPECT_EQ(block(R"({"type": "document", "source": {}})"), "messages[0].content[1]");
  EXPECT_EQ(block(R"({"text": "a"})"), "messages[0].content[1]");
  EXPECT_EQ(block("7"), "messages[0].content[1]");
  EXPECT_EQ(block(R"({"type": "input_text"})"), "messages[0].content[1].text");
  EXPECT_EQ(block(R"({"type": "text", "text": 7})"), "messages[0].content[1].text");
  EXPECT_EQ(block(R"({"type": "tool_result", "content": "a"})"), "messages[0].content[1].tool_use_id");
  EXPECT_EQ(block(R"({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]})"),
            "messages[0].content[1].content[0]");
  const auto with = [&](const std::string& fields) { return refused(absl::StrCat(kHello, ", ", fields)); };
  EXPECT_EQ(with(R"("system": [{"type": "image"}])"), "system[0]");
  EXPECT_EQ(with(R"("tools": [{"type": "web_search_20250305", "name": "web_search"}])"), "tools[0].type");
  EXPECT_EQ(with(R"("tools": [{"name": "f"}])"), "tools[0].input_schema");
  EXPECT_EQ(with(R"("tool_choice": {"type": "any"})"), "tool_choice");
  EXPECT_EQ(with(R"("tool_choice": {"type": "required"})"), "tool_choice");
  EXPECT_EQ(with(R"("thinking": {"type": "enabled"})"), "thinking.budget_tokens");
  EXPECT_EQ(with(R"("thinking": {"type": "on"})"), "thinking");
  EXPECT_EQ(with(R"("output_config": {"format": {"type": "xml"}})"), "output_config.format");
  EXPECT_EQ(with(R"("stop_sequences": "a")"), "stop_sequences");
  EXPECT_EQ(with(R"("mcp_servers": [{"type": "url"}])"), "mcp_servers");
  EXPECT_EQ(with(R"("temperature": {})"), "temperature");
  EXPECT_EQ(with(R"("response_format": {"type": "json_object"})"), "response_format");
  EXPECT_EQ(with(R"("structured_outputs": {"regex": "a+"})"), "structured_outputs");
}

TEST(ChatBody, ACallWithoutItsResultCannotBeTheLastTurn) {
  EXPECT_EQ(Refused(R"({"max_tokens": 1, "messages": [{"role": "assistant", "content": [
                         {"type": "tool_use", "id": "t", "name": "f", "input": {}}]}]})"),
            "messages");
}

TEST(ChatBody, AnObjectWithVeryManyKeysIsNotCutToOneThatIsAccepted) {
  std::string properties;
  for (int i = 0; i < 100; ++i) absl::StrAppend(&properties, i == 0 ? "" : ",", "\"p", i, "\": {}");
  const Json chat =
      Chat(absl::StrCat(kHello, R"(, "tools": [{"name": "f", "input_schema": {)", properties, "}}]"));
  EXPECT_EQ(chat["tools"][0]["function"]["parameters"].size(), 65u) << "the chat route refuses more than 64";
}

TEST(MessagesErrors, HaveAnthropicsNames) {
  EXPECT_EQ(MessagesErrorBody(InMessagesTerms(BadRequest("stop", "stop must hold non-empty strings"))),
            R"({"type":"error","error":{"type":"invalid_request_error","message":)"
            R"("stop_sequences: must hold non-empty strings"}})");
  EXPECT_EQ(InMessagesTerms(BadRequest("messages", "messages[3] tool_calls has too many keys")).message,
            "tool_calls has too many keys")
      << "the third message of the chat request is a different one of the client's";
  EXPECT_EQ(InMessagesTerms(BadRequest("/tools/2/function/parameters/not", "")).param,
            "/tools/2/input_schema/not");
  for (const auto& [status, type] :
       std::initializer_list<std::pair<int, const char*>>{{400, "invalid_request_error"},
                                                          {401, "authentication_error"},
                                                          {403, "permission_error"},
                                                          {404, "not_found_error"},
                                                          {405, "invalid_request_error"},
                                                          {413, "request_too_large"},
                                                          {429, "rate_limit_error"},
                                                          {500, "api_error"},
                                                          {503, "overloaded_error"},
                                                          {504, "timeout_error"}})
    EXPECT_STREQ(MessagesErrorType(status), type) << status;
  EXPECT_TRUE(IsMessagesTarget("/v1/messages?beta=true"));
  EXPECT_TRUE(IsMessagesTarget("/v1/messages/batches"));
  EXPECT_FALSE(IsMessagesTarget("/v1/messagesx"));
  EXPECT_FALSE(IsMessagesTarget("/v1/models"));
}

TEST(ToolInputs, AreObjects) {
  EXPECT_EQ(ToolInput("", false), "{}");
  EXPECT_EQ(ToolInput(R"( {"b": 1, "a": "}"})", false), R"( {"b": 1, "a": "}"})") << "as the model wrote it";
  EXPECT_EQ(ToolInput("[1]", false), R"({"INVALID_JSON":"[1]"})");
  EXPECT_EQ(ToolInput(R"({"a": 1)", false), R"({"INVALID_JSON":"{\"a\": 1"})");
  EXPECT_EQ(ToolInput("no", true), R"({"INVALID_JSON":"no"})");
}

TEST(ToolInputs, OfACallThatIsCutHaveWhatIsComplete) {
  EXPECT_EQ(ToolInput("{", true), "{}");
  EXPECT_EQ(ToolInput(R"({"a)", true), "{}");
  EXPECT_EQ(ToolInput(R"({"a": "lon)", true), "{}");
  EXPECT_EQ(ToolInput(R"({"a": 1, "b": 12)", true), R"({"a": 1})") << "more digits may have followed";
  EXPECT_EQ(ToolInput(R"({"a": [1, {"b": "x, \"y"}, tru)", true), R"({"a": [1, {"b": "x, \"y"}]})");
  EXPECT_EQ(ToolInput(R"({"a": {"b": []}, "c": {"d)", true), R"({"a": {"b": []}, "c": {}})");
}

}  // namespace
}  // namespace somnus
