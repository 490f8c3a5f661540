// The HTTP server records its requests.

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "tests/api/api_server_fixture.h"
#include "tests/api/recorded_requests.h"

namespace somnus {
namespace {

class RequestRecordsTest : public ApiServerTest {
 protected:
  void SetUp() override { Serve(ApiServerOptions{.recorder = recorded_}); }

  const std::shared_ptr<RecordedRequests> recorded_ = std::make_shared<RecordedRequests>();
};

TEST_F(RequestRecordsTest, AnAnsweredRequest) {
  const HttpReply reply =
      Send("POST", "/v1/completions", R"({"prompt": "abc", "max_tokens": 4, "temperature": 0})",
           "X-Request-Id: mine\r\ntraceparent: 00-a\r\nAuthorization: Bearer secret\r\n");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const RequestRecord record = recorded_->Next();
  EXPECT_EQ(record.protocol, "http");
  EXPECT_TRUE(absl::StartsWith(record.client, "127.0.0.1:")) << record.client;
  EXPECT_EQ(record.request_id, "mine");
  EXPECT_EQ(record.traceparent, "00-a");
  EXPECT_EQ(record.method, "POST");
  EXPECT_EQ(record.route, "/v1/completions");
  EXPECT_FALSE(record.of_operators);
  EXPECT_TRUE(record.generates);
  EXPECT_EQ(record.status, 200);
  EXPECT_LE(record.begin, record.end);
  ASSERT_TRUE(record.summary.has_value());
  EXPECT_EQ(record.summary->response_id, "cmpl-mine");
  EXPECT_EQ(record.summary->model, "fake");
  EXPECT_EQ(record.summary->prompt_tokens, 3);
  EXPECT_EQ(record.summary->completion_tokens, 4);
  EXPECT_EQ(record.summary->finish_reason, "length");
  EXPECT_NE(record.summary->ended, absl::InfinitePast());
}

TEST_F(RequestRecordsTest, RequestsThatTheEngineHasNotTakenHaveNoSummary) {
  EXPECT_EQ(Complete(R"({"prompt": 5})").status, 400);
  const RequestRecord wrong = recorded_->Next();
  EXPECT_EQ(wrong.status, 400);
  EXPECT_TRUE(wrong.generates);
  EXPECT_FALSE(wrong.summary.has_value());
  EXPECT_EQ(Send("GET", "/no/such/path?key=secret").status, 404);
  const RequestRecord unknown = recorded_->Next();
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.route, "");
  EXPECT_EQ(Admin("POST", "/pause").status, 200);
  EXPECT_TRUE(recorded_->Next().of_operators);
}

TEST_F(RequestRecordsTest, AClientThatLeavesIsA499WithWhatItWasTo) {
  {
    HttpClient client(server_->port());
    StartLongStream(&client, 1, 0);
  }
  const RequestRecord record = recorded_->Next();
  EXPECT_EQ(record.status, 499);
  ASSERT_TRUE(record.summary.has_value());
  EXPECT_EQ(record.summary->prompt_tokens, 3);
  EXPECT_EQ(record.summary->finish_reason, "abort");
}

TEST_F(RequestRecordsTest, ProbesAndMetricsAreNotRecorded) {
  EXPECT_EQ(Send("GET", "/health").status, 200);
  EXPECT_EQ(Send("GET", "/metrics").status, 200);
  ExpectHealthy();
  EXPECT_EQ(recorded_->Next().route, "/v1/completions") << "the first record";
}

}  // namespace
}  // namespace somnus
