// The time that a client gives a request over HTTP, the request's user, its bytes in admission, and its
// record.

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "coordinator/http/api_key.h"
#include "coordinator/openai/client_request.h"
#include "coordinator/request/expiry.h"
#include "coordinator/request/token_constraint.h"
#include "tests/api/api_server_fixture.h"
#include "tests/api/recorded_requests.h"

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

TEST_F(ApiServerTest, TheFieldNamesTheUserAndElseTheKeyDoes) {
  Serve();
  const auto user_of = [&](const std::string& field, const std::string& header) {
    const HttpReply reply = Send("POST", "/v1/completions",
                                 absl::StrCat(R"({"prompt": "abc", "max_tokens": 2)", field, "}"), header);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return engine_->last_request().user;
  };
  EXPECT_EQ(user_of("", ""), "");
  EXPECT_EQ(user_of(R"(, "user": null)", ""), "");
  EXPECT_EQ(user_of(R"(, "user": "")", ""), "");
  EXPECT_EQ(user_of(R"(, "user": "ann")", ""), "user:ann");
  EXPECT_EQ(user_of(R"(, "user": "ann")", "Authorization: Bearer one\r\n"), "user:ann");
  const std::string one = user_of("", "Authorization: Bearer one\r\n");
  EXPECT_NE(one, "");
  EXPECT_FALSE(absl::StrContains(one, "one")) << "a key is in no name";
  EXPECT_EQ(user_of("", "Authorization: Bearer one\r\n"), one);
  EXPECT_NE(user_of("", "Authorization: Bearer two\r\n"), one);
  EXPECT_NE(user_of(absl::StrCat(R"(, "user": ")", one, "\""), ""), one)
      << "no field makes the name of a key";
  EXPECT_EQ(Complete(R"({"prompt": "abc", "user": 5})").status, 400);
}

TEST(UserNames, AreShortAndTellUsersApart) {
  const std::string longer(100'000, 'u');
  EXPECT_LE(UserOfField(longer).size(), 70u);
  EXPECT_EQ(UserOfField(longer), UserOfField(longer));
  EXPECT_NE(UserOfField(longer), UserOfField(longer + "u"));
  EXPECT_NE(UserOfField("a"), UserOfField("b"));
}

TEST(UserNames, PeopleReadTheFieldAndNoFieldLooksLikeAKey) {
  EXPECT_EQ(ShownUser(UserOfField("ann")), "ann");
  EXPECT_EQ(ShownUser(""), "");
  const std::string key = UserOfKey("Bearer one");
  EXPECT_EQ(ShownUser(key), key);
  EXPECT_NE(ShownUser(UserOfField(key)), key);
}

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

constexpr int64_t kFormBytes = 1'000'000;

class LargeForm : public TokenConstraint {
 public:
  std::unique_ptr<TokenMatcher> NewMatcher() const override { return nullptr; }
  int32_t num_mask_words() const override { return 9; }
  int64_t bytes() const override { return kFormBytes; }
};

// The bytes that the sender of each choice holds, for `n` choices of each of two prompts.
int64_t HeldBytesOf(int32_t n, std::shared_ptr<const TokenConstraint> constraint) {
  const auto engine = std::make_shared<FakeEngine>();
  const auto model = std::make_shared<const ServedModel>(FakeModel(engine));
  GenerateParams params;
  params.prompts = {{.ids = {5, 6}, .max_tokens = 2}, {.ids = {7}, .max_tokens = 2}};
  params.n = n;
  params.constraint = std::move(constraint);
  ClientRequest request(model, &params, nullptr, 1 << 20);
  EXPECT_TRUE(request.Submit([] {}).ok());
  EXPECT_TRUE(engine->WaitIdle());
  return engine->last_request().held_bytes;
}

// Each choice has a matcher of its own.
TEST(RequestContextTest, TheMemoryOfAFormCountsInTheAdmissionOfEachChoice) {
  for (const int32_t n : {1, 4}) {
    const int64_t without = HeldBytesOf(n, nullptr);
    EXPECT_LT(without, 10'000);
    EXPECT_EQ(HeldBytesOf(n, std::make_shared<LargeForm>()) - without, kFormBytes) << n;
  }
}

}  // namespace
}  // namespace somnus
