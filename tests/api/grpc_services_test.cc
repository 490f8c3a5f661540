// Both gRPC services over a real channel, above a fake engine.

#include "coordinator/api/grpc_services.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/metrics/metrics.h"
#include "proto/control.grpc.pb.h"
#include "proto/inference.grpc.pb.h"
#include "tests/api/gated_tokenizer.h"

namespace somnus {
namespace {

class GrpcServicesTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(ApiLimits()); }
  void Start(const ApiLimits& limits) {
    Stop();
    options_.limits = limits;
    options_.rank_status = [this] {
      gate_.Pass();
      return std::vector<v1::RankStatus>();
    };
    services_ = GrpcServices::Create(options_, Metrics::Create("fake", 4096));
    services_->SetModel(GatedModel(engine_, &gate_));
    grpc::ServerBuilder inference, control;
    services_->RegisterInference(&inference);
    services_->RegisterControl(&control);
    channel_ = Listen(&inference, &server_);
    control_channel_ = Listen(&control, &control_server_);
    inference_ = v1::InferenceService::NewStub(channel_);
    control_ = v1::ControlService::NewStub(control_channel_);
  }
  // Starts a listener, and dials it.
  static std::shared_ptr<grpc::Channel> Listen(grpc::ServerBuilder* builder,
                                               std::unique_ptr<grpc::Server>* server) {
    int port = 0;
    builder->AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    *server = builder->BuildAndStart();
    EXPECT_NE(*server, nullptr);
    // Without probes for bandwidth a client that does not read takes no more than 64 KiB.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials(),
                                     arguments);
  }
  void Stop() {
    if (server_ != nullptr) server_->Shutdown();
    if (control_server_ != nullptr) control_server_->Shutdown();
    server_.reset();
    control_server_.reset();
  }
  void TearDown() override {
    gate_.Open();
    Stop();
  }

  static v1::GenerateRequest Request(const std::string& prompt, int max_tokens) {
    v1::GenerateRequest request;
    request.set_text(prompt);
    request.mutable_sampling()->set_max_tokens(max_tokens);
    return request;
  }
  // Returns a whole response's text.
  std::string Text(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    const auto reader = inference_->Generate(&context, request);
    std::string text;
    for (v1::GenerateResponse response; reader->Read(&response);) {
      for (const v1::ChoiceDelta& choice : response.choices()) text += choice.text();
    }
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return text;
  }
  grpc::Status Refused(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    return inference_->Generate(&context, request)->Finish();
  }
  // Reads a stream to its end. (A client's Finish waits for ever while messages have not been read.)
  static grpc::Status Drain(grpc::ClientReader<v1::GenerateResponse>* reader) {
    for (v1::GenerateResponse response; reader->Read(&response);) {
    }
    return reader->Finish();
  }
  grpc::StatusCode Outcome(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    return Drain(inference_->Generate(&context, request).get()).error_code();
  }
  // Opens a stream of about 1 MB that is not read, and waits until another call may be open: at most one may.
  void ExpectUnreadCallEnds() {
    v1::GenerateRequest request = Request("abc", 4000);
    request.mutable_sampling()->set_logprobs(20);
    grpc::ClientContext context;
    const auto unread = inference_->Generate(&context, request);
    while (engine_->num_open() == 0) absl::SleepFor(absl::Milliseconds(1));
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (Outcome(Request("abc", 3)) == grpc::StatusCode::RESOURCE_EXHAUSTED) {
      ASSERT_LT(absl::Now(), deadline) << "the call is still open";
      absl::SleepFor(absl::Milliseconds(10));
    }
    EXPECT_TRUE(engine_->WaitIdle());
    EXPECT_FALSE(Drain(unread.get()).ok());
    EXPECT_EQ(Text(Request("abc", 5)), "abcab");
  }
  grpc::Status Sleep(int level, v1::SleepResponse* response) {
    grpc::ClientContext context;
    v1::SleepRequest request;
    request.set_level(level);
    return control_->Sleep(&context, request, response);
  }

  Gate gate_;
  std::shared_ptr<FakeEngine> engine_ = std::make_shared<FakeEngine>();
  GrpcServicesOptions options_;
  std::unique_ptr<GrpcServices> services_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::Server> control_server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<grpc::Channel> control_channel_;
  std::unique_ptr<v1::InferenceService::Stub> inference_;
  std::unique_ptr<v1::ControlService::Stub> control_;
};

TEST_F(GrpcServicesTest, ListsAreBounded) {
  const std::pair<const char*, std::function<void(v1::GenerateRequest*)>> cases[] = {
      {"prompt", [](auto* r) { r->mutable_token_ids()->mutable_ids()->Resize(1'000'000, 65); }},
      {"logit_bias",
       [](auto* r) {
         for (int32_t i = 0; i < 1025; ++i) (*r->mutable_sampling()->mutable_logit_bias())[i] = 1;
       }},
      {"stop_token_ids", [](auto* r) { r->mutable_sampling()->mutable_stop_token_ids()->Resize(129, 65); }},
      {"allowed_token_ids",
       [](auto* r) { r->mutable_sampling()->mutable_allowed_token_ids()->Resize(1025, 65); }},
      {"stop",
       [](auto* r) {
         for (int i = 0; i < 5; ++i) r->mutable_sampling()->add_stop("z");
       }},
      {"bad_words",
       [](auto* r) {
         for (int i = 0; i < 129; ++i) r->mutable_sampling()->add_bad_words()->add_ids(65);
       }},
      {"bad_words", [](auto* r) { r->mutable_sampling()->add_bad_words()->mutable_ids()->Resize(65, 65); }},
  };
  for (const auto& [field, grow] : cases) {
    v1::GenerateRequest request = Request("abc", 5);
    grow(&request);
    const grpc::Status status = Refused(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_EQ(status.error_message().substr(0, status.error_message().find(':')), field);
  }
  EXPECT_EQ(Text(Request("abc", 5)), "abcab");
}

TEST_F(GrpcServicesTest, AStuckCallStopsNeitherTheEngineNorOthers) {
  gate_.Close();
  grpc::ClientContext context;
  const auto stuck = inference_->Generate(&context, Request("!", 100));
  gate_.AwaitWaiter();
  EXPECT_EQ(Text(Request("abc", 5)), "abcab");
  EXPECT_TRUE(engine_->WaitIdle());  // the engine has ended the stuck one, too
  gate_.Open();
  std::string text;
  for (v1::GenerateResponse response; stuck->Read(&response);) {
    for (const v1::ChoiceDelta& choice : response.choices()) text += choice.text();
  }
  EXPECT_TRUE(stuck->Finish().ok());
  EXPECT_EQ(text, std::string(100, '!'));
}

TEST_F(GrpcServicesTest, ACallWhoseClientDoesNotReadEndsInTime) {
  ApiLimits limits;
  limits.max_open_calls = 1;
  limits.max_stream_backlog_bytes = 1 << 30;
  limits.write_timeout = absl::Milliseconds(200);
  Start(limits);
  ExpectUnreadCallEnds();
}

TEST_F(GrpcServicesTest, ACallWhoseClientDoesNotReadIsBoundedInBytes) {
  ApiLimits limits;
  limits.max_open_calls = 1;
  limits.max_stream_backlog_bytes = 16 << 10;
  Start(limits);
  ExpectUnreadCallEnds();
}

// Without a bound each call has a thread, on which its message is parsed before anything else is checked.
TEST_F(GrpcServicesTest, TheThreadsAreBounded) {
  ApiLimits limits;
  limits.max_open_calls = 1;
  Start(limits);
  gate_.Close();
  std::atomic<int> ok{0}, refused{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 64; ++i) {
    clients.emplace_back([&] {
      grpc::ClientContext context;
      v1::GetStatusResponse response;
      const grpc::Status status = control_->GetStatus(&context, v1::GetStatusRequest(), &response);
      if (status.ok()) ++ok;
      if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) ++refused;
    });
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (refused < 24 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_GE(refused, 24);
  gate_.Open();
  for (std::thread& client : clients) client.join();
  EXPECT_GE(ok, 16);
  EXPECT_EQ(ok + refused, 64);
  EXPECT_EQ(Text(Request("abc", 5)), "abcab");
}

TEST_F(GrpcServicesTest, AnErrorNamesItsFieldOnce) {
  v1::GenerateRequest request = Request("abc", 5);
  request.mutable_sampling()->set_temperature(2.5);
  EXPECT_EQ(Refused(request).error_message(), "temperature: must be in [0, 2]");
  request = Request("abc", 0);
  EXPECT_EQ(Refused(request).error_message(), "max_tokens: must be at least 1");
  request = Request("", 5);
  EXPECT_EQ(Refused(request).error_message(), "prompt: must not be empty");
  request = Request("abc", 5);
  request.set_model("other");
  EXPECT_EQ(Refused(request).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Refused(request).error_message(), "model: The model `other` does not exist.");
}

TEST_F(GrpcServicesTest, SleepLevelsAreOneAndTwo) {
  v1::SleepResponse response;
  for (const int level : {-1, 0, 3}) {
    const grpc::Status status = Sleep(level, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(status.error_message(), "level: must be 1 or 2");
  }
  EXPECT_EQ(engine_->state(), EngineState::kAwake);
}

TEST_F(GrpcServicesTest, RepeatedCallsSayThatNothingWasDone) {
  v1::SleepResponse response;
  ASSERT_TRUE(Sleep(2, &response).ok());
  EXPECT_FALSE(response.already_asleep());
  EXPECT_EQ(response.level(), 2);
  EXPECT_EQ(response.freed_bytes_by_tag_size(), 1);
  for (const int level : {2, 1}) {
    ASSERT_TRUE(Sleep(level, &response).ok());
    EXPECT_TRUE(response.already_asleep());
    EXPECT_EQ(response.level(), 2);
  }
  for (const bool already : {false, true}) {
    grpc::ClientContext context;
    v1::WakeUpResponse woken;
    ASSERT_TRUE(control_->WakeUp(&context, v1::WakeUpRequest(), &woken).ok());
    EXPECT_TRUE(woken.awake());
    EXPECT_EQ(woken.already_resident(), already);
  }
}

// Calls `method` with these bytes as its message.
grpc::Status CallWithBytes(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                           const std::string& bytes) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  const auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  void* tag = nullptr;
  call->Finish(&response, &status, &tag);
  void* got = nullptr;
  bool ok = false;
  queue.Next(&got, &ok);
  return status;
}

TEST_F(GrpcServicesTest, BytesThatAreNoMessageAreRefusedWithAText) {
  for (const std::string method :
       {"/somnus.v1.ControlService/Sleep", "/somnus.v1.InferenceService/Generate"}) {
    const auto channel = absl::StrContains(method, "Control") ? control_channel_ : channel_;
    const grpc::Status status = CallWithBytes(channel, method, "\xff\xff\xff garbage");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(status.error_message(), "the request is not a message of " + method);
  }
  EXPECT_EQ(Text(Request("abc", 3)), "abc");
}

TEST_F(GrpcServicesTest, EachServiceIsAtItsOwnListenerAlone) {
  grpc::Status status = CallWithBytes(channel_, "/somnus.v1.ControlService/Sleep", "");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  status = CallWithBytes(control_channel_, "/somnus.v1.InferenceService/Generate", "");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(engine_->state(), EngineState::kAwake);
}

TEST_F(GrpcServicesTest, EachServiceHasItsOwnKey) {
  options_.api_key = "clients";
  options_.control_api_key = "operators";
  Start(ApiLimits());
  const auto code = [](const char* key, auto call) {
    grpc::ClientContext context;
    if (*key != '\0') context.AddMetadata("authorization", absl::StrCat("Bearer ", key));
    return call(&context).error_code();
  };
  const auto list = [this](grpc::ClientContext* context) {
    v1::ListModelsResponse response;
    return inference_->ListModels(context, v1::ListModelsRequest(), &response);
  };
  const auto sleep = [this](grpc::ClientContext* context) {
    v1::SleepRequest request;
    request.set_level(1);
    v1::SleepResponse response;
    return control_->Sleep(context, request, &response);
  };
  for (const char* key : {"", "operators", "clientsx"}) {
    EXPECT_EQ(code(key, list), grpc::StatusCode::UNAUTHENTICATED) << key;
  }
  for (const char* key : {"", "clients"})
    EXPECT_EQ(code(key, sleep), grpc::StatusCode::UNAUTHENTICATED) << key;
  EXPECT_EQ(engine_->state(), EngineState::kAwake);
  EXPECT_EQ(code("clients", list), grpc::StatusCode::OK);
  EXPECT_EQ(code("operators", sleep), grpc::StatusCode::OK);
}

TEST_F(GrpcServicesTest, OperatorsMessagesAreSmall) {
  const grpc::Status status =
      CallWithBytes(control_channel_, "/somnus.v1.ControlService/WakeUp", std::string(65 << 10, '\n'));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

// A client of a later version puts only the KV cache to sleep: level 1, and field 2 with a tag.
TEST_F(GrpcServicesTest, AFieldThatIsNotKnownIsRefused) {
  grpc::Status status =
      CallWithBytes(control_channel_, "/somnus.v1.ControlService/Sleep", "\x08\x01\x12\x08kv_cache");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "field 2 of SleepRequest is not known here");
  status = CallWithBytes(control_channel_, "/somnus.v1.ControlService/WakeUp", "\x10\x01");
  EXPECT_EQ(status.error_message(), "field 2 of WakeUpRequest is not known here");
  EXPECT_EQ(engine_->state(), EngineState::kAwake);
}

TEST_F(GrpcServicesTest, TheStatusNamesTheStateAndWhyRequestsAreNotServed) {
  for (const EngineState state : kEngineStates) {
    engine_->set_state(state);
    grpc::ClientContext context;
    v1::GetStatusResponse response;
    ASSERT_TRUE(control_->GetStatus(&context, v1::GetStatusRequest(), &response).ok());
    EXPECT_EQ(absl::AsciiStrToLower(v1::EngineState_Name(response.state())),
              absl::StrCat("engine_state_", EngineStateName(state)));
    EXPECT_EQ(response.not_ready_reason(), WhyNotReady(state));
    EXPECT_EQ(response.group_epoch(), 3);
    EXPECT_EQ(response.num_recoveries(), 2);
  }
}

}  // namespace
}  // namespace somnus
