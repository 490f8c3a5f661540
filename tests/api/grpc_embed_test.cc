// InferenceService.Embed.

#include <map>

#include "absl/strings/str_cat.h"
#include "tests/api/grpc_services_fixture.h"

namespace somnus {
namespace {

class GrpcEmbedTest : public GrpcServicesTest {
 protected:
  static v1::EmbedRequest Texts(const std::vector<std::string>& texts) {
    v1::EmbedRequest request;
    for (const std::string& text : texts) request.add_inputs()->set_text(text);
    request.set_normalize(false);
    return request;
  }
  // The vectors by index; the last response alone has the usage.
  std::map<int32_t, std::vector<float>> Vectors(const v1::EmbedRequest& request, v1::Usage* usage = nullptr) {
    grpc::ClientContext context;
    const auto reader = inference_->Embed(&context, request);
    std::map<int32_t, std::vector<float>> vectors;
    bool ended = false;
    for (v1::EmbedResponse response; reader->Read(&response);) {
      EXPECT_FALSE(ended);
      EXPECT_GT(response.embeddings_size(), 0);
      EXPECT_EQ(response.weights_version(), 1);
      for (const v1::Embedding& one : response.embeddings())
        EXPECT_TRUE(vectors.emplace(one.index(), std::vector<float>(one.values().begin(), one.values().end()))
                        .second);
      ended = response.has_usage();
      if (ended && usage != nullptr) *usage = response.usage();
    }
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(ended);
    return vectors;
  }
  grpc::Status Refused(const v1::EmbedRequest& request) {
    grpc::ClientContext context;
    return inference_->Embed(&context, request)->Finish();
  }
};

TEST_F(GrpcEmbedTest, TextsAndTokens) {
  v1::Usage usage;
  auto vectors = Vectors(Texts({"abc", "d"}), &usage);
  EXPECT_EQ(vectors[0], (std::vector<float>{97, 99, 3, 1}));
  EXPECT_EQ(vectors[1], (std::vector<float>{100, 100, 1, 1}));
  EXPECT_EQ(usage.prompt_tokens(), 4);
  EXPECT_EQ(usage.completion_tokens(), 0);
  v1::EmbedRequest request;
  for (const int32_t id : {3, 4}) request.add_inputs()->mutable_token_ids()->add_ids(id);
  request.set_normalize(false);
  request.set_user("me");
  vectors = Vectors(request);
  EXPECT_EQ(vectors[1], (std::vector<float>{4, 4, 1, 1}));
}

TEST_F(GrpcEmbedTest, ErrorsNameTheField) {
  const auto expect = [&](const v1::EmbedRequest& request, const std::string& field) {
    const grpc::Status status = Refused(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_NE(status.error_message().find(field), std::string::npos) << status.error_message();
  };
  expect({}, "input");
  v1::EmbedRequest request = Texts({"abc"});
  request.add_inputs();
  expect(request, "inputs");
  request = Texts({"abc"});
  request.add_inputs()->mutable_token_ids()->add_ids(5);
  expect(request, "inputs");
  request = Texts(std::vector<std::string>(1025, "a"));
  expect(request, "inputs");
  request = Texts({"abc"});
  request.set_dimensions(2);
  expect(request, "dimensions");
  request = Texts({"abc"});
  request.set_model("other");
  EXPECT_EQ(Refused(request).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(GrpcEmbedTest, ManyInputsComeInSeveralMessages) {
  const auto vectors = Vectors(Texts(std::vector<std::string>(500, "abc")));
  EXPECT_EQ(vectors.size(), 500u);
}

}  // namespace
}  // namespace somnus
