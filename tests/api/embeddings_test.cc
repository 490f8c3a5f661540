// /v1/embeddings and /pooling: forms of input, options, errors, and what comes back.

#include "coordinator/openai/embeddings.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

class EmbeddingsTest : public ApiServerTest {
 protected:
  void ServeModel(const PoolingOptions& pooling, ApiServerOptions options = {}) {
    Start(std::move(options));
    ServedModel model = FakeModel(engine_);
    model.pooling = pooling;
    server_->SetModel(std::move(model));
  }
  Json Embed(const std::string& fields, const std::string& path = "/v1/embeddings") {
    const HttpReply reply = Send("POST", path, absl::StrCat("{", fields, "}"));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  }
  // The vectors of a request without normalization.
  std::vector<std::vector<float>> Vectors(const std::string& fields) {
    std::vector<std::vector<float>> vectors;
    const Json reply = Embed(absl::StrCat(fields, ", \"normalize\": false"));
    for (const Json& item : reply["data"]) vectors.push_back(item["embedding"].get<std::vector<float>>());
    return vectors;
  }
  // The error of a request, which names `param`.
  std::string Refused(const std::string& fields, const std::string& param,
                      const std::string& path = "/v1/embeddings") {
    const HttpReply reply = Send("POST", path, absl::StrCat("{", fields, "}"));
    EXPECT_EQ(reply.status, 400) << fields << ": " << reply.body;
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["param"], param) << fields << ": " << reply.body;
    return error["message"];
  }
};

using Floats = std::vector<std::vector<float>>;

TEST_F(EmbeddingsTest, EveryFormOfInput) {
  Serve();
  EXPECT_EQ(Vectors(R"("input": "abc")"), (Floats{{97, 99, 3, 1}}));
  EXPECT_EQ(Vectors(R"("input": ["abc", "d"])"), (Floats{{97, 99, 3, 1}, {100, 100, 1, 1}}));
  EXPECT_EQ(Vectors(R"("input": [1, 2, 3, 4])"), (Floats{{1, 4, 4, 1}}));
  EXPECT_EQ(Vectors(R"("input": [[1, 2], [3]])"), (Floats{{1, 2, 2, 1}, {3, 3, 1, 1}}));
  EXPECT_EQ(engine_->last_request().max_tokens, 0);
}

TEST_F(EmbeddingsTest, BothShapes) {
  Serve();
  const Json embeddings = Embed(R"("input": "abc", "model": "fake", "request_id": "x", "user": "u")");
  EXPECT_EQ(embeddings["id"], "embd-x");
  EXPECT_EQ(embeddings["object"], "list");
  EXPECT_EQ(embeddings["model"], "fake");
  EXPECT_TRUE(embeddings["created"].is_number_integer());
  EXPECT_EQ(embeddings["data"][0]["object"], "embedding");
  EXPECT_EQ(embeddings["data"][0]["index"], 0);
  EXPECT_EQ(embeddings["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(embeddings["usage"]["total_tokens"], 3);
  const Json pooling = Embed(R"("input": "abc", "request_id": "x", "task": "embed")", "/pooling");
  EXPECT_EQ(pooling["id"], "pooling-x");
  EXPECT_EQ(pooling["data"][0]["object"], "pooling");
  EXPECT_EQ(pooling["data"][0]["data"], embeddings["data"][0]["embedding"]);
}

TEST_F(EmbeddingsTest, VectorsAreNormalizedUnlessTheRequestSaysNo) {
  Serve();
  const auto vector = Embed(R"("input": [3, 4])")["data"][0]["embedding"].get<std::vector<float>>();
  const double length = std::sqrt(9 + 16 + 4 + 1.0);
  ASSERT_EQ(vector.size(), 4u);
  EXPECT_FLOAT_EQ(vector[0], static_cast<float>(3 / length));
  EXPECT_FLOAT_EQ(vector[1], static_cast<float>(4 / length));
  const Json whole = Embed(R"("input": [3, 4], "use_activation": false)")["data"][0]["embedding"];
  EXPECT_EQ(whole.dump(), "[3.0,4.0,2.0,1.0]");
  Refused(R"("input": "a", "normalize": true, "use_activation": false)", "normalize");
}

TEST_F(EmbeddingsTest, Base64IsTheFloatsBytes) {
  Serve();
  const Json text =
      Embed(R"("input": [3, 4], "encoding_format": "base64", "normalize": false)")["data"][0]["embedding"];
  std::string bytes;
  ASSERT_TRUE(absl::Base64Unescape(text.get<std::string>(), &bytes));
  ASSERT_EQ(bytes.size(), 16u);
  float numbers[4];
  std::memcpy(numbers, bytes.data(), 16);
  EXPECT_EQ(std::vector<float>(numbers, numbers + 4), (std::vector<float>{3, 4, 2, 1}));
}

TEST_F(EmbeddingsTest, ThePoolingIsTheModels) {
  ServeModel({.type = Pooling::kMean});
  EXPECT_EQ(Vectors(R"("input": "abc")"), (Floats{{97, 99, 3, 3}}));
}

TEST_F(EmbeddingsTest, Dimensions) {
  Serve();
  EXPECT_EQ(Refused(R"("input": "a", "dimensions": 2)", "dimensions"),
            "Model \"fake\" does not support matryoshka representation, changing output dimensions will lead "
            "to poor "
            "results.");
  EXPECT_EQ(Vectors(R"("input": "a", "dimensions": 4)")[0].size(), 4u) << "nothing is cut";
  ServeModel({.matryoshka = {.any = true}});
  EXPECT_EQ(Vectors(R"("input": [5, 6], "dimensions": 2)"), (Floats{{5, 6}}));
  Refused(R"("input": "a", "dimensions": 0)", "dimensions");
  Refused(R"("input": "a", "dimensions": 5)", "dimensions");
  Refused(R"("input": "a", "dimensions": 1.5)", "dimensions");
  ServeModel({.matryoshka = {.listed = {1, 3}}});
  EXPECT_EQ(Vectors(R"("input": [5, 6], "dimensions": 3)"), (Floats{{5, 6, 2}}));
  EXPECT_EQ(Refused(R"("input": "a", "dimensions": 2)", "dimensions"),
            "Model \"fake\" only supports [1, 3] matryoshka dimensions, use other output dimensions will "
            "lead to poor "
            "results.");
}

TEST_F(EmbeddingsTest, Truncation) {
  Serve();
  EXPECT_EQ(Vectors(R"("input": [1, 2, 3, 4], "truncate_prompt_tokens": 2)"), (Floats{{3, 4, 2, 1}}));
  EXPECT_EQ(Vectors(R"("input": [1, 2, 3, 4], "truncate_prompt_tokens": 3, "truncation_side": "right")"),
            (Floats{{1, 3, 3, 1}}));
  const std::string fits = absl::StrCat("\"input\": \"", std::string(4096, 'a'), "\"");
  EXPECT_EQ(Vectors(fits)[0][2], 4096) << "the whole context: no output follows";
  const std::string longer = absl::StrCat("\"input\": \"", std::string(4096, 'a'), "b\"");
  Refused(longer, "input");
  EXPECT_EQ(Vectors(longer + ", \"truncate_prompt_tokens\": -1"), (Floats{{97, 98, 4096, 1}}));
}

TEST_F(EmbeddingsTest, ErrorsNameTheField) {
  ServeModel({}, ApiServerOptions{.limits = {.max_prompts = 3}});
  const std::pair<const char*, const char*> cases[] = {
      {R"("model": "fake")", "input"},
      {R"("input": null)", "input"},
      {R"("input": "")", "input"},
      {R"("input": [])", "input"},
      {R"("input": [[]])", "input"},
      {R"("input": ["a", ""])", "input"},
      {R"("input": ["a", [5]])", "input"},
      {R"("input": [257])", "input"},
      {R"("input": [1.5])", "input"},
      {R"("input": {"a": 1})", "input"},
      {R"("input": [{"role": "user", "content": "a"}])", "input"},
      {R"("input": ["a", "b", "c", "d"])", "input"},
      {R"("input": "a", "encoding_format": "hex")", "encoding_format"},
      {R"("input": "a", "encoding_format": "bytes")", "encoding_format"},
      {R"("input": "a", "encoding_format": 5)", "encoding_format"},
      {R"("input": "a", "embed_dtype": "float16")", "embed_dtype"},
      {R"("input": "a", "endianness": "big")", "endianness"},
      {R"("input": "a", "padding": "max_length")", "padding"},
      {R"("input": "a", "normalize": 2)", "normalize"},
      {R"("input": "a", "use_activation": "x")", "use_activation"},
      {R"("input": "a", "truncate_prompt_tokens": 0)", "truncate_prompt_tokens"},
      {R"("input": "a", "truncate_prompt_tokens": -2)", "truncate_prompt_tokens"},
      {R"("input": "a", "truncation_side": "middle")", "truncation_side"},
      {R"("input": "a", "add_special_tokens": 5)", "add_special_tokens"},
      {R"("input": "a", "priority": 1.5)", "priority"},
      {R"("input": "a", "cache_salt": "")", "cache_salt"},
      {R"("input": "a", "user": 5)", "user"},
      {R"("input": "a", "model": 5)", "model"},
      {R"("input": "a", "mm_processor_kwargs": {"a": 1})", "mm_processor_kwargs"},
      {R"("input": "a", "messages": [])", "messages"}};
  for (const auto& [fields, param] : cases) Refused(fields, param);
  for (const char* task : {"token_embed", "classify", "nonsense"})
    Refused(absl::StrCat(R"("input": "a", "task": ")", task, "\""), "task", "/pooling");
  Refused(R"("input": "a", "data": {"x": 1})", "data", "/pooling");
  EXPECT_EQ(Send("POST", "/v1/embeddings", R"({"input": "a", "model": "other"})").status, 404);
  EXPECT_EQ(Send("GET", "/v1/embeddings").status, 405);
  EXPECT_EQ(engine_->num_open(), 0u);
}

TEST_F(EmbeddingsTest, AResponseThatWouldBeTooLargeIsRefusedBeforeItIsComputed) {
  ServeModel({}, ApiServerOptions{.limits = {.max_response_bytes = 100}});
  Embed(R"("input": ["a", "b"], "normalize": false)");
  Refused(R"("input": ["a", "b", "c"], "normalize": false)", "input");
  Embed(R"("input": ["a", "b", "c"], "encoding_format": "base64")");
}

TEST_F(EmbeddingsTest, EnginesErrorsAndAborts) {
  Serve({}, absl::Milliseconds(50));
  engine_->set_submit_status(absl::ResourceExhaustedError("the queue is full"));
  EXPECT_EQ(Send("POST", "/v1/embeddings", R"({"input": "a"})").status, 429);
  engine_->set_submit_status(absl::OkStatus());
  engine_->FailAfter(0, absl::UnavailableError("lost"));
  EXPECT_EQ(Send("POST", "/v1/embeddings", R"({"input": "a"})").status, 503);
  engine_->FailAfter(-1, absl::OkStatus());
  engine_->set_state(EngineState::kPaused);
  HttpClient client(server_->port());
  client.Write(RequestText("POST", "/v1/embeddings", R"({"input": "a"})"));
  AwaitOpen();
  engine_->Abort(engine_->last_request().id);
  engine_->set_state(EngineState::kAwake);
  EXPECT_EQ(client.ReadReply().status, 503) << "there is no half of a vector";
}

TEST_F(EmbeddingsTest, TheModelSaysWhetherVectorsAreNormalized) {
  ServeModel({.normalizes = false});
  const auto vector = [&](const char* fields) { return Embed(fields)["data"][0]["embedding"]; };
  EXPECT_EQ(vector(R"("input": "abc")"), (std::vector<float>{97, 99, 3, 1}));
  EXPECT_NE(vector(R"("input": "abc", "normalize": true)"), vector(R"("input": "abc")"));
}

TEST_F(EmbeddingsTest, AModelWhoseEmbeddingsCannotBeMadeSaysWhy) {
  ServeModel({.problem = "the model's embeddings need the module Dense"});
  for (const char* path : {"/v1/embeddings", "/pooling"}) {
    const HttpReply reply = Send("POST", path, R"({"input": "a"})");
    EXPECT_EQ(reply.status, 400) << path;
    EXPECT_NE(reply.body.find("the module Dense"), std::string::npos) << reply.body;
  }
}

TEST_F(EmbeddingsTest, TheRunnerForPoolingAnswersWithNoText) {
  ServeModel({.generates = false});
  EXPECT_EQ(Vectors(R"("input": "abc")"), (Floats{{97, 99, 3, 1}}));
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"}) {
    const HttpReply reply = Send("POST", path, R"({"prompt": "a"})");
    EXPECT_EQ(reply.status, 400) << path;
    EXPECT_NE(reply.body.find("--runner=pooling"), std::string::npos) << path << ": " << reply.body;
  }
  EXPECT_EQ(Send("POST", "/tokenize", R"({"prompt": "a"})").status, 200);
}

TEST(EmbeddingNumbersTest, NumbersAreReadAsTheSameFloats) {
  std::vector<float> numbers = {0, -0.0f, 1, 0.1f, -1e-45f, 3.4e38f, 1.0f / 3, 16777216, 1e20f};
  std::string json;
  AppendNumbers(numbers, &json);
  std::vector<float> read;
  for (const Json& number : Json::parse(json)) {
    EXPECT_TRUE(number.is_number_float()) << json;
    read.push_back(static_cast<float>(number.get<double>()));
  }
  EXPECT_EQ(ToBase64(read), ToBase64(numbers));
}

TEST(EmbeddingNumbersTest, AVectorOfZerosStaysOne) {
  EXPECT_EQ(FinishEmbedding({}, {0, 0}), (std::vector<float>{0, 0}));
  EXPECT_EQ(FinishEmbedding({.dimensions = 1}, {-2, 5}), (std::vector<float>{-1}));
}

}  // namespace
}  // namespace somnus
