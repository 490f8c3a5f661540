// The routes of token ids: /inference/v1/generate, the render routes and /tokenizer_info. The fake engine's
// answer is the prompt over again.

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/api/api_server_fixture.h"
#include "text/jinja/chat_template.h"
#include "text/tools/tool_format.h"

namespace somnus {
namespace {

constexpr char kGenerate[] = "/inference/v1/generate";

class TokenRoutesTest : public ApiServerTest {
 protected:
  void ServeTemplate(const char* chat_template, const ApiServerOptions& options = {}) {
    Start(options);
    ServedModel model = FakeModel(engine_);
    model.templates.chat = *ChatTemplate::Compile(chat_template);
    server_->SetModel(std::move(model));
  }
  Json Post(const std::string& path, const std::string& body, const std::string& headers = "") {
    const HttpReply reply = Send("POST", path, body, headers);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  }
  // The param of a 400.
  std::string RefusedParam(const std::string& path, const std::string& body) {
    const HttpReply reply = Send("POST", path, body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    return Json::parse(reply.body)["error"]["param"];
  }
};

// The data of a stream's events but for [DONE].
std::vector<Json> EventsOf(const std::string& body) {
  std::vector<Json> events;
  EXPECT_TRUE(absl::EndsWith(body, "data: [DONE]\n\n")) << body;
  for (absl::string_view text : absl::StrSplit(body, "\n\n", absl::SkipEmpty())) {
    EXPECT_TRUE(absl::ConsumePrefix(&text, "data: ")) << text;
    if (text != "[DONE]") events.push_back(Json::parse(text));
  }
  return events;
}

TEST_F(TokenRoutesTest, TokensInTokensOut) {
  Serve();
  const Json answer = Post(kGenerate, R"({"token_ids": [97, 98, 99], "sampling_params": {"max_tokens": 4}})");
  EXPECT_TRUE(absl::StartsWith(answer["request_id"].get<std::string>(), "generate-tokens-"));
  ASSERT_EQ(answer["choices"].size(), 1u);
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["token_ids"], Json({97, 98, 99, 97}));
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_TRUE(answer["prompt_logprobs"].is_null());
  EXPECT_EQ(answer["usage"]["completion_tokens"], 4);
  EXPECT_FALSE(choice.contains("text"));
}

TEST_F(TokenRoutesTest, TheAnswerSaysThatItHasNoText) {
  Serve();
  const Json whole = Post(kGenerate, R"({"token_ids": [97], "output_mode": "tokens"})");
  EXPECT_EQ(whole["output_mode"], "tokens");
  const HttpReply reply = Send("POST", kGenerate, R"({"token_ids": [97], "stream": true})");
  for (const Json& event : EventsOf(reply.body)) EXPECT_EQ(event["output_mode"], "tokens") << event;
  EXPECT_EQ(RefusedParam(kGenerate, R"({"token_ids": [97], "output_mode": "text"})"), "output_mode");
}

TEST_F(TokenRoutesTest, TheStreamSaysTheSameAsTheWholeAnswer) {
  Serve();
  const std::string body = R"({"token_ids": [97, 98, 99], "request_id": "x", "stream": true,
      "stream_options": {"include_usage": true}, "sampling_params": {"max_tokens": 5, "n": 2, "logprobs": 1}})";
  const HttpReply reply = Send("POST", kGenerate, body);
  ASSERT_EQ(reply.status, 200) << reply.body;
  const std::vector<Json> events = EventsOf(reply.body);
  std::map<int, Json> ids, entries;
  std::map<int, std::string> reasons;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(events[i]["request_id"], "generate-tokens-x");
    ASSERT_EQ(events[i]["choices"].size(), 1u);
    const Json& choice = events[i]["choices"][0];
    const int index = choice["index"];
    for (const Json& id : choice["token_ids"]) ids[index].push_back(id);
    for (const Json& entry : choice["logprobs"]["content"]) entries[index].push_back(entry);
    EXPECT_EQ(reasons.count(index), 0u) << "an event after the last one of its choice";
    if (!choice["finish_reason"].is_null()) reasons[index] = choice["finish_reason"];
  }
  EXPECT_TRUE(events.back()["choices"].empty());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 10);
  std::string whole_body = body;
  whole_body.replace(whole_body.find("\"stream\": true"), 14, "\"stream\": false");
  whole_body.replace(whole_body.find("{\"include_usage\": true}"), 23, "null");
  const Json whole = Post(kGenerate, whole_body);
  ASSERT_EQ(whole["choices"].size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(whole["choices"][i]["token_ids"], ids[i]);
    EXPECT_EQ(whole["choices"][i]["logprobs"]["content"], entries[i]);
    EXPECT_EQ(whole["choices"][i]["finish_reason"], reasons[i]);
  }
}

TEST_F(TokenRoutesTest, LogProbabilitiesNameTokensByIds) {
  Serve();
  const Json answer = Post(kGenerate, R"({"token_ids": [97, 98, 99],
      "sampling_params": {"max_tokens": 2, "logprobs": 2, "prompt_logprobs": 0}})");
  const Json& entries = answer["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0]["token"], "token_id:97");
  EXPECT_EQ(entries[0]["top_logprobs"].size(), 2u);
  ASSERT_EQ(answer["prompt_logprobs"].size(), 3u);
  EXPECT_TRUE(answer["prompt_logprobs"][0].is_null());
}

TEST_F(TokenRoutesTest, SamplingParametersReachTheEngine) {
  Serve();
  Post(kGenerate,
       R"({"token_ids": [97], "priority": 3, "cache_salt": "s", "kv_transfer_params": null, "sampling_params":
      {"temperature": 0.5, "top_p": 0.75, "top_k": 5, "seed": 11, "min_tokens": 2, "stop_token_ids": [98],
       "ignore_eos": true, "logit_bias": {"99": 2}, "stop": null, "bad_words": null, "detokenize": false}})");
  const EngineRequest request = engine_->last_request();
  EXPECT_EQ(request.sampling->temperature, 0.5f);
  EXPECT_EQ(request.sampling->top_p, 0.75f);
  EXPECT_EQ(request.sampling->top_k, 5);
  EXPECT_EQ(request.sampling->stop_token_ids, std::vector<int32_t>{98});
  EXPECT_TRUE(request.sampling->eos_token_ids.empty());
  EXPECT_EQ(request.sampling->logit_bias.at(99), 2.0f);
  EXPECT_EQ(request.seed, 11u);
  EXPECT_EQ(request.priority, 3);
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.max_tokens, 16);
  Post(kGenerate, absl::StrCat(R"({"token_ids": [)", "97", R"(], "sampling_params": {"max_tokens": null}})"));
  EXPECT_EQ(engine_->last_request().max_tokens, engine_->max_model_len() - 1);
}

TEST_F(TokenRoutesTest, TheHeaderNamesTheRequest) {
  Serve();
  const Json answer = Post(kGenerate, R"({"token_ids": [97]})", "X-Request-Id: mine\r\n");
  EXPECT_EQ(answer["request_id"], "generate-tokens-mine");
}

TEST_F(TokenRoutesTest, WrongFieldsAreNamed) {
  Serve();
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "token_ids"},
      {R"({"token_ids": []})", "token_ids"},
      {R"({"token_ids": "abc"})", "token_ids"},
      {R"({"token_ids": [257]})", "token_ids"},
      {R"({"token_ids": [97], "sampling_params": []})", "sampling_params"},
      {R"({"token_ids": [97], "sampling_params": {"top_p": 2}})", "sampling_params.top_p"},
      {R"({"token_ids": [97], "sampling_params": {"stop": [""]}})", "sampling_params.stop"},
      {R"({"token_ids": [97], "sampling_params": {"extra_args": {"a": 1}}})", "sampling_params.extra_args"},
      {R"({"token_ids": [97], "sampling_params": {"detokenize": 7}})", "sampling_params.detokenize"},
      {R"({"token_ids": [97], "sampling_params": {"grammar": "x"}})", "sampling_params.grammar"},
      {R"({"token_ids": [97], "sampling_params": {"json_schema": {}}})", "sampling_params.json_schema"},
      {R"({"token_ids": [97], "json_schema": {}})", "json_schema"},
      {R"({"token_ids": [97], "features": {"mm_hashes": {}}})", "features"},
      {R"({"token_ids": [97], "request_id": 7})", "request_id"},
      {R"({"token_ids": [97], "stream": "perhaps"})", "stream"},
      {R"({"token_ids": [97], "kv_transfer_params": {"a": 1}})", "kv_transfer_params"},
  };
  for (const auto& [body, param] : cases) EXPECT_EQ(RefusedParam(kGenerate, body), param) << body;
  const HttpReply reply = Send("POST", kGenerate, R"({"token_ids": [97], "model": "other"})");
  EXPECT_EQ(reply.status, 404) << reply.body;
}

TEST_F(TokenRoutesTest, ARenderedChatIsAnsweredWithTheSameTokens) {
  ServeTemplate("{% for m in messages %}<{{ m.content }}>{% endfor %}");
  const std::string body =
      R"({"messages": [{"role": "user", "content": "ab"}], "max_tokens": 7, "temperature": 0.7,
      "return_token_ids": true, "seed": 3, "stop": "zz", "logit_bias": {"99": 0.25}, "logprobs": true,
      "top_logprobs": 2, "cache_salt": "s"})";
  const Json rendered = Post("/v1/chat/completions/render", body);
  EXPECT_EQ(rendered["token_ids"], Json({'<', 'a', 'b', '>'}));
  EXPECT_TRUE(absl::StartsWith(rendered["request_id"].get<std::string>(), "chatcmpl-"));
  EXPECT_EQ(rendered["model"], "fake");
  EXPECT_EQ(rendered["stream"], false);
  EXPECT_EQ(rendered["cache_salt"], "s");
  EXPECT_TRUE(rendered["features"].is_null());
  const Json& sampling = rendered["sampling_params"];
  EXPECT_EQ(sampling["temperature"].dump(), "0.7");
  EXPECT_EQ(sampling["max_tokens"], 7);
  EXPECT_EQ(sampling["seed"], 3);
  EXPECT_EQ(sampling["stop"], Json({"zz"}));
  EXPECT_EQ(sampling["logprobs"], 2);
  EXPECT_EQ(sampling["logit_bias"], Json({{"99", 0.25}}));
  EXPECT_TRUE(sampling["structured_outputs"].is_null());
  EXPECT_EQ(engine_->num_open(), 0u);

  const Json chat = Post("/v1/chat/completions", body);
  const auto of_chat = engine_->last_request();
  const Json answer = Post(kGenerate, rendered.dump());
  const auto of_tokens = engine_->last_request();
  EXPECT_EQ(answer["choices"][0]["token_ids"], chat["choices"][0]["token_ids"]);
  EXPECT_EQ(of_tokens.sampling->temperature, of_chat.sampling->temperature);
  EXPECT_EQ(of_tokens.sampling->logit_bias, of_chat.sampling->logit_bias);
  EXPECT_EQ(of_tokens.sampling->num_logprobs, of_chat.sampling->num_logprobs);
  EXPECT_EQ(of_tokens.max_tokens, of_chat.max_tokens);
  EXPECT_EQ(of_tokens.seed, of_chat.seed);
}

TEST_F(TokenRoutesTest, ACompletionIsRenderedForEachPrompt) {
  Serve();
  const Json rendered = Post("/v1/completions/render", R"({"prompt": ["ab", "c"], "request_id": "r"})");
  ASSERT_EQ(rendered.size(), 2u);
  EXPECT_EQ(rendered[0]["token_ids"], Json({97, 98}));
  EXPECT_EQ(rendered[1]["token_ids"], Json({99}));
  EXPECT_EQ(rendered[0]["request_id"], "cmpl-r");
  EXPECT_EQ(rendered[1]["request_id"], "cmpl-r-1");
  EXPECT_EQ(rendered[0]["sampling_params"]["max_tokens"], 16);
}

TEST_F(TokenRoutesTest, AFormIsRenderedAsItWasWritten) {
  Serve();
  const auto form = [&](const std::string& field) {
    return Post("/v1/completions/render",
                absl::StrCat(R"({"prompt": "a", )", field, "}"))[0]["sampling_params"]["structured_outputs"];
  };
  EXPECT_EQ(form(R"("response_format": {"type": "json_object"})"), Json({{"json_object", true}}));
  const Json schema = {{"type", "object"},
                       {"properties", {{"b", {{"type", "null"}}}, {"a", {{"type", "null"}}}}}};
  EXPECT_EQ(form(absl::StrCat(R"("response_format": {"type": "json_schema", "json_schema": {"schema": )",
                              schema.dump(), "}}")),
            Json({{"json", schema}}));
  EXPECT_EQ(form(R"("guided_choice": ["x", "y"])"), Json({{"choice", {"x", "y"}}}));
  EXPECT_EQ(form(R"("structured_outputs": {"regex": "a+"})"), Json({{"regex", "a+"}}));
}

TEST_F(TokenRoutesTest, WhatGoesBeforeAFormIsRendered) {
  Start();
  ServedModel model = FakeModel(engine_);
  model.templates.chat = *ChatTemplate::Compile("{{ messages[0].content }}<think>");
  model.turn_format.reasoning = FindReasoningFormat("qwen3");
  server_->SetModel(std::move(model));
  const auto render = [&](const std::string& field) {
    return Post(
        "/v1/chat/completions/render",
        absl::StrCat(R"({"max_tokens": 9, "messages": [{"role": "user", "content": "a"}], )", field, "}"));
  };
  const Json form = render(R"("guided_regex": "a+")")["sampling_params"];
  EXPECT_EQ(form["reasoning"], Json({{"is_open", true}, {"max_tokens", nullptr}}));
  EXPECT_EQ(form["structured_outputs"], Json({{"regex", "a+"}}));
  EXPECT_TRUE(render(R"("seed": 1)")["sampling_params"]["reasoning"].is_null());

  const Json bounded = render(R"("thinking_token_budget": 5)");
  EXPECT_EQ(bounded["sampling_params"]["reasoning"]["max_tokens"], 5);
  Post(kGenerate, bounded.dump());
  EXPECT_NE(engine_->last_request().constraint, nullptr) << "the budget is kept";
}

TEST_F(TokenRoutesTest, WhatCannotBeSentAsTokensIsRefused) {
  Serve();
  EXPECT_EQ(RefusedParam("/v1/completions/render", R"({"prompt": "a", "use_beam_search": true, "n": 2})"),
            "use_beam_search");
  EXPECT_EQ(RefusedParam("/v1/completions/render", R"({"prompt": "a", "best_of": 2})"), "best_of");
  EXPECT_EQ(RefusedParam("/v1/completions/render", R"({"prompt": "a", "top_p": 2})"), "top_p");
  EXPECT_EQ(RefusedParam("/v1/chat/completions/render", R"({})"), "messages");
}

TEST_F(TokenRoutesTest, TheTokenizerIsToldWhereAFlagSaysSo) {
  Serve();
  const HttpReply refused = Send("GET", "/tokenizer_info");
  EXPECT_EQ(refused.status, 404);
  EXPECT_TRUE(absl::StrContains(refused.body, "--enable-tokenizer-info-endpoint")) << refused.body;
  Serve(ApiServerOptions{.tokenizer_info = true});
  const HttpReply reply = Send("GET", "/tokenizer_info");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json info = Json::parse(reply.body);
  EXPECT_EQ(info["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(info["eos_token"], "<eos>");
  EXPECT_TRUE(info["chat_template"].is_null());
  EXPECT_EQ(info["model_max_length"], engine_->max_model_len());
}

TEST_F(TokenRoutesTest, DefaultVariablesOfTheTemplateGiveWayToTheRequest) {
  Start();
  ServedModel model = FakeModel(engine_);
  model.templates.chat = *ChatTemplate::Compile("{{ tone }}{{ enable_thinking }}");
  model.default_template_kwargs = std::make_shared<const nlohmann::ordered_json>(
      nlohmann::ordered_json{{"tone", "a"}, {"enable_thinking", false}});
  server_->SetModel(std::move(model));
  const auto prompt = [&](const std::string& fields) {
    const Json ids =
        Post("/v1/chat/completions/render",
             absl::StrCat(R"({"messages": [{"role": "user", "content": "x"}])", fields, "}"))["token_ids"];
    std::string text;
    for (const Json& id : ids) text += static_cast<char>(id.get<int>());
    return text;
  };
  EXPECT_EQ(prompt(""), "aFalse");
  EXPECT_EQ(prompt(R"(, "chat_template_kwargs": {"tone": "b"})"), "bFalse");
  EXPECT_EQ(prompt(R"(, "reasoning_effort": "low")"), "aTrue");
}

// The ids of a request's prompt, as text.
std::string TextOf(const Json& ids) {
  std::string text;
  for (const Json& id : ids)
    text += id == ByteTokenizer::kEos ? std::string("#") : std::string(1, static_cast<char>(id.get<int>()));
  return text;
}

class PriorTurnsTest : public TokenRoutesTest {
 protected:
  void SetUp() override {
    Start();
    ServedModel model = FakeModel(engine_);
    model.templates.chat = *ChatTemplate::Compile(
        "{% for m in messages %}{{ m.role[0] }}{{ m.content|trim }}{% if m.role == 'assistant' %}<eos>{% "
        "endif %}!{% endfor %}"
        "{% if add_generation_prompt %}a{% endif %}");
    model.config.eos_token_ids = {ByteTokenizer::kEos};
    server_->SetModel(std::move(model));
  }
  std::string Prompt(const std::string& messages, const std::string& fields = "") {
    return TextOf(Post("/v1/chat/completions/render",
                       absl::StrCat(R"({"messages": )", messages, fields, "}"))["token_ids"]);
  }
};

TEST_F(PriorTurnsTest, TheIdsOfATurnComeAsTheyWere) {
  // 'x' and 'y' are not what the text says, and the end token is not written twice.
  EXPECT_EQ(
      Prompt(
          R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "text", "token_ids": [120, 121, 256]},
                       {"role": "user", "content": "r"}])"),
      "uq!axy#!ur!a");
  // A turn that was cut gets the template's end.
  EXPECT_EQ(
      Prompt(R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "t", "token_ids": [120]},
                       {"role": "user", "content": "r"}])"),
      "uq!ax<eos>!ur!a");
}

TEST_F(PriorTurnsTest, ThePromptOfATurnReplacesEverythingBeforeIt) {
  EXPECT_EQ(
      Prompt(R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "t", "token_ids": [1]},
                       {"role": "user", "content": "r"},
                       {"role": "assistant", "content": "t", "prompt_token_ids": [65, 66], "token_ids": [120, 256]},
                       {"role": "user", "content": "s"}, {"role": "assistant", "content": "t", "token_ids": [121, 256]}])",
             R"(, "add_generation_prompt": false)"),
      "ABx#!us!ay#!");
}

TEST_F(PriorTurnsTest, AConversationGrowsByItsOwnTokens) {
  const std::string fields = R"(, "return_token_ids": true, "max_tokens": 5})";
  const Json first =
      Post("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "q"}])" + fields);
  const Json messages = Json::array({{{"role", "user"}, {"content", "q"}},
                                     {{"role", "assistant"},
                                      {"content", "whatever"},
                                      {"prompt_token_ids", first["prompt_token_ids"]},
                                      {"token_ids", first["choices"][0]["token_ids"]}},
                                     {{"role", "user"}, {"content", "r"}}});
  const Json second = Post("/v1/chat/completions", absl::StrCat(R"({"messages": )", messages.dump(), fields));
  Json begin = first["prompt_token_ids"];
  for (const Json& id : first["choices"][0]["token_ids"]) begin.push_back(id);
  const Json& prompt = second["prompt_token_ids"];
  ASSERT_GT(prompt.size(), begin.size());
  EXPECT_EQ(Json(std::vector<Json>(prompt.begin(), prompt.begin() + begin.size())), begin);
  const Json counted = Post("/tokenize", absl::StrCat(R"({"messages": )", messages.dump(), "}"));
  EXPECT_EQ(counted["tokens"], prompt);
}

TEST_F(PriorTurnsTest, WrongIdsAreNamed) {
  for (const char* message : {R"({"role": "user", "content": "q", "token_ids": [1]})",
                              R"({"role": "assistant", "content": "q", "token_ids": []})",
                              R"({"role": "assistant", "content": "q", "token_ids": [257]})",
                              R"({"role": "assistant", "content": "q", "token_ids": "a"})",
                              R"({"role": "assistant", "content": "q", "prompt_token_ids": [1]})"}) {
    const HttpReply reply =
        Send("POST", "/v1/chat/completions", absl::StrCat(R"({"messages": [)", message, "]}"));
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_TRUE(absl::StrContains(reply.body, "messages[0]")) << reply.body;
  }
  EXPECT_EQ(RefusedParam("/v1/chat/completions",
                         R"({"messages": [{"role": "assistant", "content": "q", "token_ids": [1]}],
                             "continue_final_message": true, "add_generation_prompt": false})"),
            "continue_final_message");
}

TEST_F(TokenRoutesTest, ATemplateThatLeavesATurnOutIsRefused) {
  ServeTemplate("{{ messages[-1].content }}");
  const HttpReply reply = Send("POST", "/v1/chat/completions",
                               R"({"messages": [{"role": "assistant", "content": "q", "token_ids": [1]},
                                   {"role": "user", "content": "r"}]})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_TRUE(absl::StrContains(reply.body, "token_ids")) << reply.body;
}

Json Span(const std::string& version, int start, int end) {
  return {{"version", version}, {"start", start}, {"end", end}};
}

TEST_F(TokenRoutesTest, AChoiceSaysWhichWeightsComputedItsTokens) {
  ServeTemplate("{{ messages[-1].content }}");
  const std::string fields = R"("prompt": "ab", "max_tokens": 3, "n": 2, "return_weight_versions": true)";
  const Json whole = Post("/v1/completions", absl::StrCat("{", fields, "}"));
  for (const Json& choice : whole["choices"])
    EXPECT_EQ(choice["weight_versions"], Json::array({Span("1", 0, 3)})) << whole;
  EXPECT_FALSE(Post("/v1/completions", R"({"prompt": "ab"})")["choices"][0].contains("weight_versions"));
  const std::string chat = R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 4,
                               "return_weight_versions": true})";
  EXPECT_EQ(Post("/v1/chat/completions", chat)["choices"][0]["weight_versions"],
            Json::array({Span("1", 0, 4)}));
  const Json tokens = Post(kGenerate, R"({"token_ids": [97], "return_weight_versions": true,
                                          "sampling_params": {"max_tokens": 5}})");
  EXPECT_EQ(tokens["choices"][0]["weight_versions"], Json::array({Span("1", 0, 5)}));
  EXPECT_FALSE(Post(kGenerate, R"({"token_ids": [97]})")["choices"][0].contains("weight_versions"));
}

TEST_F(TokenRoutesTest, InAStreamTheLastEventOfAChoiceSaysWhichWeights) {
  ServeTemplate("{{ messages[-1].content }}");
  for (const char* path : {"/v1/completions", "/v1/chat/completions", kGenerate}) {
    for (const char* interval : {"1", "2"}) {
      const std::string prompt = path == kGenerate
                                     ? R"("token_ids": [97], "sampling_params": {"max_tokens": 3})"
                                 : absl::EndsWith(path, "chat/completions")
                                     ? R"("messages": [{"role": "user", "content": "a"}], "max_tokens": 3)"
                                     : R"("prompt": "ab", "max_tokens": 3)";
      const HttpReply reply =
          Send("POST", path,
               absl::StrCat("{", prompt, R"(, "stream": true, "return_weight_versions": true,
               "stream_interval": )",
                            interval, "}"));
      ASSERT_EQ(reply.status, 200) << reply.body;
      int num_ends = 0;
      for (const Json& event : EventsOf(reply.body)) {
        const Json& choice = event["choices"][0];
        const bool ends = !choice["finish_reason"].is_null();
        num_ends += ends;
        EXPECT_EQ(choice.contains("weight_versions"), ends) << event;
        if (!ends) continue;
        EXPECT_EQ(choice["weight_versions"], Json::array({Span("1", 0, 3)})) << event;
      }
      EXPECT_EQ(num_ends, 1) << reply.body;
    }
  }
}

TEST_F(TokenRoutesTest, ALabelNamesTheTokensThatComeAfterIt) {
  Serve();
  engine_->LoseAfter(3);
  HttpClient client(server_->port());
  client.Write(RequestText("POST", kGenerate, R"({"token_ids": [97], "return_weight_versions": true,
                                                  "sampling_params": {"max_tokens": 7}})"));
  AwaitState(EngineState::kRecovering);
  EXPECT_EQ(Admin("POST", "/update_weight_version", R"({"new_version": "step \"8\""})").status, 200);
  engine_->set_state(EngineState::kAwake);
  const HttpReply reply = client.ReadReply();
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(Json::parse(reply.body)["choices"][0]["weight_versions"],
            Json::array({Span("1", 0, 3), Span("step \"8\"", 3, 7)}));
}

TEST_F(TokenRoutesTest, AnAbortedChoiceWithoutTokensHasNoSpan) {
  Serve();
  engine_->set_state(EngineState::kPaused);
  HttpClient client(server_->port());
  client.Write(RequestText("POST", "/v1/completions", R"({"prompt": "a", "return_weight_versions": true})"));
  AwaitOpen();
  EXPECT_EQ(Admin("POST", "/abort_requests", "{}").status, 200);
  engine_->set_state(EngineState::kAwake);
  const Json choice = Json::parse(client.ReadReply().body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "abort");
  EXPECT_EQ(choice["weight_versions"], Json::array());
}

TEST_F(TokenRoutesTest, ABeamSearchDoesNotSayWhichWeights) {
  Serve();
  EXPECT_EQ(RefusedParam("/v1/completions", R"({"prompt": "a", "use_beam_search": true, "max_tokens": 2,
                                                "return_weight_versions": true})"),
            "return_weight_versions");
}

}  // namespace
}  // namespace somnus
