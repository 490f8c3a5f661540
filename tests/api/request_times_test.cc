// How long a client gives its request over HTTP, and what it is told when the time is over.

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "coordinator/request/expiry.h"
#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

constexpr char kBody[] = R"({"prompt": "abc", "max_tokens": 4, "temperature": 0})";
constexpr char kStreamBody[] = R"({"prompt": "abc", "max_tokens": 9, "temperature": 0, "stream": true})";

TEST_F(ApiServerTest, TimesReachTheEngineAsTimesOfItsClock) {
  Serve();
  const MonotonicTime before = MonotonicNow();
  const HttpReply reply =
      Send("POST", "/v1/completions", kBody, "X-Request-Timeout: 1000.5\r\nx-slo-ttft-ms: 500000\r\n");
  const MonotonicTime after = MonotonicNow();
  ASSERT_EQ(reply.status, 200) << reply.body;
  const EngineRequest times = engine_->last_request();
  EXPECT_GE(times.deadline, before + absl::Seconds(1000.5));
  EXPECT_LE(times.deadline, after + absl::Seconds(1000.5));
  EXPECT_EQ(times.deadline - times.first_token_by, absl::Seconds(500.5));
}

TEST_F(ApiServerTest, WithoutThemARequestHasAllTheTimeItNeeds) {
  Serve();
  ASSERT_EQ(Complete(kBody).status, 200);
  EXPECT_EQ(engine_->last_request().deadline, absl::InfiniteDuration());
  EXPECT_EQ(engine_->last_request().first_token_by, absl::InfiniteDuration());
}

TEST_F(ApiServerTest, TheServersBoundHoldsWhateverARequestAsksFor) {
  Serve(ApiServerOptions{.limits = {.max_request_timeout = absl::Seconds(50)}});
  for (const auto& [header, timeout] :
       {std::pair("", 50), {"X-Request-Timeout: 60\r\n", 50}, {"X-Request-Timeout: 40\r\n", 40}}) {
    const MonotonicTime before = MonotonicNow();
    ASSERT_EQ(Send("POST", "/v1/completions", kBody, header).status, 200);
    EXPECT_GE(engine_->last_request().deadline, before + absl::Seconds(timeout));
    EXPECT_LE(engine_->last_request().deadline, MonotonicNow() + absl::Seconds(timeout));
  }
}

TEST_F(ApiServerTest, AMalformedTimeIsNamed) {
  Serve();
  for (const char* header : {"X-Request-Timeout", "X-SLO-TTFT-Ms"}) {
    for (const char* value : {"", "0", "0.0", "-1", "+1", "1e3", "0x10", "inf", "nan", "1,5", "1s", "1 2",
                              ".", "1.2.3", "100000000000000000000000000000000"}) {
      SCOPED_TRACE(absl::StrCat(header, ": ", value));
      const HttpReply reply =
          Send("POST", "/v1/completions", kBody, absl::StrCat(header, ": ", value, "\r\n"));
      ASSERT_EQ(reply.status, 400) << reply.body;
      const Json error = Json::parse(reply.body)["error"];
      EXPECT_EQ(error["param"], header);
      EXPECT_TRUE(absl::StrContains(std::string(error["message"]), header));
    }
    const std::string one = absl::StrCat(header, ": 5\r\n");
    EXPECT_EQ(Send("POST", "/v1/completions", kBody, one + one).status, 400) << "it is given twice";
  }
  EXPECT_TRUE(engine_->priorities().empty()) << "the engine had none of them";
}

TEST_F(ApiServerTest, ARequestThatIsNotDoneInTimeIsATimeout) {
  Serve();
  engine_->FailAfter(2, ExpiryError(ExpiryCause::kDeadlineRunning));
  const HttpReply reply = Complete(kBody);
  EXPECT_EQ(reply.status, 504);
  EXPECT_EQ(Json::parse(reply.body)["error"]["code"], 504);
  EXPECT_FALSE(absl::StrContains(reply.head, "Retry-After"));
  const HttpReply stream = Complete(kStreamBody);
  EXPECT_EQ(stream.status, 200);
  EXPECT_TRUE(absl::StrContains(stream.body, "\"code\":504")) << stream.body;
  EXPECT_TRUE(absl::EndsWith(stream.body, "data: [DONE]\n\n"));
}

TEST_F(ApiServerTest, ARequestThatIsRefusedForItsFirstTokenMayComeAgain) {
  Serve();
  for (const ExpiryCause cause : {ExpiryCause::kTtftEstimate, ExpiryCause::kTtftPassed}) {
    engine_->FailAfter(0, ExpiryError(cause));
    for (const char* body : {kBody, kStreamBody}) {
      const HttpReply reply = Complete(body);
      EXPECT_EQ(reply.status, 503);
      EXPECT_TRUE(absl::StrContains(reply.head, "Retry-After: 1\r\n")) << reply.head;
    }
  }
}

}  // namespace
}  // namespace somnus
