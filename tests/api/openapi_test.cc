// GET /openapi.json: its fields are those that requests are parsed by. Each listed field is sent with a value
// of its type, which is accepted, and with a value of another type, which is refused by the field's name.

#include <gtest/gtest.h>

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/api/api_server_fixture.h"
#include "text/jinja/chat_template.h"

namespace somnus {
namespace {

class OpenApiTest : public ApiServerTest {
 protected:
  void SetUp() override {
    Start();
    ServedModel model = FakeModel(engine_);
    model.templates.chat = *ChatTemplate::Compile("{{ messages[-1].content }}");
    server_->SetModel(std::move(model));
    document_ = Json::parse(Send("GET", "/openapi.json").body);
  }
  // The schema of a route's body.
  Json BodyOf(const std::string& path) {
    return document_["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
  }

  Json document_;
};

// The part of a schema that is not "or null".
Json Essence(const Json& schema) {
  return schema.contains("anyOf") && schema["anyOf"].size() == 2 &&
                 schema["anyOf"][1] == Json{{"type", "null"}}
             ? schema["anyOf"][0]
             : schema;
}

// A value that the schema allows.
Json RightValue(const Json& schema) {
  if (schema.contains("examples")) return schema["examples"][0];
  if (schema.contains("enum")) return schema["enum"][0];
  const Json type = schema.value("type", Json());
  if (type == "integer") return std::max(1, schema.value("minimum", 1));
  if (type == "number") return 0.5;
  if (type == "boolean") return false;
  if (type == "string") return "a";
  if (type == "array") return Json::array({schema["items"]["type"] == "integer" ? Json(97) : Json("a")});
  if (schema.contains("anyOf")) return RightValue(schema["anyOf"][0]);
  return Json::object();
}

// A value that no field of this type takes.
Json WrongValue(const Json& schema) {
  const Json type = schema.value("type", Json());
  if (type == "object") return 17;
  if (type.is_array()) return 17;  // object, boolean or string
  return Json{{"zz", 1}};
}

// Fields that a field needs beside it, or that make the value right.
Json Beside(const std::string& route, const std::string& field) {
  if (field == "stream_options") return {{"stream", true}};
  if (field == "early_stopping") return {{"use_beam_search", true}};
  if (field == "top_logprobs") return {{"logprobs", true}};
  if (field == "tool_choice" && route == "/v1/chat/completions")
    return {{"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}}};
  if (field == "function_call") return {{"functions", {{{"name", "f"}}}}};
  if (field == "continue_final_message" && route != "/tokenize") return {{"add_generation_prompt", false}};
  return Json::object();
}

TEST_F(OpenApiTest, ListsTheRoutesOfItsListener) {
  EXPECT_EQ(document_["openapi"], "3.1.0");
  EXPECT_EQ(document_["info"]["version"], "1.2.3");
  const Json& paths = document_["paths"];
  for (const char* path : {"/v1/chat/completions", "/v1/responses/{id}", "/health", "/inference/v1/generate"})
    EXPECT_TRUE(paths.contains(path)) << path;
  EXPECT_TRUE(paths["/v1/prefixes/{id}"].contains("delete"));
  EXPECT_TRUE(paths["/v1/prefixes/{id}"].contains("get"));
  EXPECT_FALSE(paths.contains("/sleep"));
  EXPECT_TRUE(Json::parse(Admin("GET", "/openapi.json").body)["paths"].contains("/sleep"));
}

TEST_F(OpenApiTest, EachListedFieldIsReadAsItsTypeSays) {
  const std::map<std::string, Json> bodies = {
      {"/v1/completions", {{"prompt", "abc"}}},
      {"/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "abc"}}}}, {"max_tokens", 4}}},
      {"/tokenize", {{"prompt", "abc"}}},
      {"/detokenize", {{"tokens", {97}}}},
      {"/inference/v1/generate", {{"token_ids", {97}}}},
      {"/v1/embeddings", {{"input", "abc"}}},
      {"/pooling", {{"input", "abc"}}},
      {"/v1/responses", {{"input", "abc"}, {"max_output_tokens", 4}}},
      {"/v1/messages", {{"messages", {{{"role", "user"}, {"content", "abc"}}}}, {"max_tokens", 4}}},
      {"/v1/messages/count_tokens", {{"messages", {{{"role", "user"}, {"content", "abc"}}}}}},
  };
  // Fields that this model, which has no grammars, no reasoning and a single name, refuses all the same.
  const std::set<std::string> refused = {"model",        "structured_outputs",   "guided_json",
                                         "guided_regex", "guided_choice",        "guided_grammar",
                                         "dimensions",   "previous_response_id", "output_format"};
  for (const auto& [path, body] : bodies) {
    const Json schema = BodyOf(path);
    ASSERT_TRUE(schema.contains("properties")) << path;
    EXPECT_GE(schema["properties"].size(), 2u);
    for (const auto& [name, property] : schema["properties"].items()) {
      SCOPED_TRACE(absl::StrCat(path, " ", name));
      EXPECT_FALSE(property["description"].get<std::string>().empty());
      const Json essence = Essence(property);
      Json right = body;
      right.update(Beside(path, name));
      if (path == "/tokenize" && name != "prompt" && name != "model")
        right["messages"] = bodies.at("/v1/chat/completions")["messages"];
      // Some of these fields are read only beside messages.
      if ((path == "/v1/embeddings" || path == "/pooling") && name != "input" && name != "model") {
        right.erase("input");
        right["messages"] = bodies.at("/v1/chat/completions")["messages"];
      }
      right[name] = RightValue(essence);
      HttpReply reply = Send("POST", path, right.dump());
      if (refused.count(name) > 0) {
        EXPECT_TRUE(reply.status == 400 || reply.status == 404) << reply.body;
      } else {
        EXPECT_EQ(reply.status, 200) << right << reply.body;
      }
      Json wrong = right;
      wrong[name] = WrongValue(essence);
      if (path == "/tokenize" && name == "messages") wrong.erase("prompt");  // which would count instead
      reply = Send("POST", path, wrong.dump());
      EXPECT_EQ(reply.status, 400) << wrong << reply.body;
      // A schema that is refused is named by a pointer within the schema.
      const Json error = Json::parse(reply.body)["error"];
      if (absl::StartsWith(path, "/v1/messages")) {
        EXPECT_TRUE(absl::StartsWith(error["message"].get<std::string>(), name)) << reply.body;
      } else if (name != "guided_json") {
        EXPECT_EQ(error["param"], name) << reply.body;
      }
      if (property != essence) continue;
      Json with_null = right;
      with_null[name] = nullptr;
      reply = Send("POST", path, with_null.dump());
      EXPECT_EQ(reply.status, 400) << with_null << reply.body;
    }
    for (const Json& name : schema.value("required", Json::array())) {
      Json without = body;
      without.erase(name.get<std::string>());
      EXPECT_EQ(Send("POST", path, without.dump()).status, 400) << path << " " << name;
    }
  }
}

TEST_F(OpenApiTest, APrefixIsACompletionOrAChat) {
  const Json either = BodyOf("/v1/prefixes")["anyOf"];
  ASSERT_EQ(either.size(), 2u);
  EXPECT_TRUE(either[0]["properties"].contains("prompt"));
  EXPECT_TRUE(either[1]["properties"].contains("messages"));
}

TEST_F(OpenApiTest, SamplingParametersAreListedAndReadToo) {
  const Json sampling = Essence(BodyOf("/inference/v1/generate")["properties"]["sampling_params"]);
  ASSERT_TRUE(sampling.contains("properties")) << sampling;
  for (const auto& [name, property] : sampling["properties"].items()) {
    SCOPED_TRACE(name);
    if (name == "structured_outputs") continue;
    const Json essence = Essence(property);
    Json body = {{"token_ids", {97}}, {"sampling_params", {{name, RightValue(essence)}}}};
    HttpReply reply = Send("POST", "/inference/v1/generate", body.dump());
    EXPECT_EQ(reply.status, 200) << body << reply.body;
    body["sampling_params"][name] = WrongValue(essence);
    reply = Send("POST", "/inference/v1/generate", body.dump());
    EXPECT_EQ(reply.status, 400) << body << reply.body;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], "sampling_params." + name) << reply.body;
    body["sampling_params"][name] = nullptr;
    EXPECT_EQ(Send("POST", "/inference/v1/generate", body.dump()).status, 200) << body;
  }
}

}  // namespace
}  // namespace somnus
