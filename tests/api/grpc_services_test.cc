// Both gRPC services over a real channel, above a fake engine.

#include "coordinator/grpc/grpc_services.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/api/grpc_services_fixture.h"

namespace somnus {
namespace {

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
  Start(ApiLimits{.max_stream_backlog_bytes = 16 << 10, .max_open_calls = 1});
  ExpectUnreadCallEnds();
}

// As many of them as there are threads for operators' calls.
TEST_F(GrpcServicesTest, AUnaryCallWhoseClientDoesNotReadTheReplyEndsInTime) {
  ApiLimits limits{.write_timeout = absl::Milliseconds(200)};
  host_bytes_ = 1 << 20;
  Start(limits);
  grpc::GenericStub stub(control_channel_);
  grpc::CompletionQueue queue;
  std::vector<grpc::ClientContext> contexts(16);
  std::vector<std::unique_ptr<grpc::GenericClientAsyncReaderWriter>> unread;
  for (grpc::ClientContext& context : contexts) {
    void* tag;
    bool ok;
    unread.push_back(stub.PrepareCall(&context, "/somnus.v1.ControlService/GetStatus", &queue));
    unread.back()->StartCall(nullptr);
    ASSERT_TRUE(queue.Next(&tag, &ok));
    const grpc::Slice nothing;
    unread.back()->WriteLast(grpc::ByteBuffer(&nothing, 1), grpc::WriteOptions(), nullptr);
    ASSERT_TRUE(queue.Next(&tag, &ok));
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  grpc::Status status;
  v1::GetStatusResponse response;
  do {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    status = control_->GetStatus(&context, v1::GetStatusRequest(), &response);
  } while (!status.ok() && absl::Now() < deadline);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.ranks(0).host().size(), host_bytes_);
  for (grpc::ClientContext& context : contexts) context.TryCancel();
  queue.Shutdown();
}

// Without a bound each call has a thread, on which its message is parsed before anything else is checked.
TEST_F(GrpcServicesTest, TheThreadsAreBounded) {
  ApiLimits limits;
  limits.max_control_calls = 12;  // and 12 threads of watchers
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
  for (int i = 0; i < 3000 && refused < 24; ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_GE(refused, 24);
  gate_.Open();
  for (std::thread& client : clients) client.join();
  EXPECT_GE(ok, 14) << "of 24 threads, some wait for calls or are kept for watchers";
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
  EXPECT_EQ(Refused(request).error_message(),
            "model: The model `other` does not exist. The server has: fake.");
}

TEST_F(GrpcServicesTest, SleepLevelsAreZeroToTwo) {
  v1::SleepResponse response;
  for (const int level : {-1, 3}) {
    const grpc::Status status = Sleep(level, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(status.error_message(), "level: must be 0, 1 or 2");
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

TEST_F(GrpcServicesTest, WeightsAreReloaded) {
  const auto reload = [this](const v1::ReloadWeightsRequest& request, v1::ReloadWeightsResponse* response) {
    grpc::ClientContext context;
    return control_->ReloadWeights(&context, request, response);
  };
  v1::ReloadWeightsRequest request;
  v1::ReloadWeightsResponse response;
  request.set_path("/models/b");
  ASSERT_TRUE(reload(request, &response).ok());
  EXPECT_EQ(response.weights_version(), 2);
  EXPECT_EQ(engine_->last_reload().path, "/models/b");
  EXPECT_EQ(engine_->last_reload().mode, SleepMode::kWait);
  EXPECT_EQ(engine_->last_reload().label, "");
  request.set_mode(v1::SLEEP_MODE_KEEP);
  request.set_weights_version(9);
  request.set_weights_label("step-9");
  ASSERT_TRUE(reload(request, &response).ok());
  EXPECT_EQ(engine_->last_reload().mode, SleepMode::kKeep);
  EXPECT_EQ(engine_->last_reload().label, "step-9");
  request.set_weights_label(std::string(129, 'v'));
  EXPECT_EQ(reload(request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.clear_weights_label();
  request.set_weights_version(0);
  EXPECT_EQ(reload(request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  engine_->set_weights_status(absl::FailedPreconditionError("the weights sleep"));
  EXPECT_EQ(reload(v1::ReloadWeightsRequest(), &response).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  grpc::ClientContext context;
  v1::GetStatusResponse status;
  ASSERT_TRUE(control_->GetStatus(&context, v1::GetStatusRequest(), &status).ok());
  EXPECT_EQ(status.weights_version(), 9);
  EXPECT_EQ(status.weights_source(), "/models/fake");
}

TEST_F(GrpcServicesTest, AnUpdateIsReceived) {
  v1::UpdateWeightsResponse response;
  const auto update = [&](const std::vector<v1::UpdateWeightsRequest>& messages) {
    grpc::ClientContext context;
    const auto writer = control_->UpdateWeights(&context, &response);
    for (const v1::UpdateWeightsRequest& message : messages) {
      if (!writer->Write(message)) break;
    }
    writer->WritesDone();
    return writer->Finish();
  };
  v1::UpdateWeightsRequest begin, chunk, finish;
  begin.mutable_begin()->set_weights_version(5);
  begin.mutable_begin()->set_weights_label("step-5");
  chunk.mutable_chunk()->set_name("a");
  chunk.mutable_chunk()->set_data(std::string(4 << 20, 'x'));
  finish.mutable_finish();
  const grpc::Status status = update({begin, chunk, chunk, finish});
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.weights_version(), 5);
  EXPECT_EQ(engine_->last_reload().label, "step-5");
  EXPECT_EQ(response.num_bytes(), 8 << 20);
  EXPECT_EQ(engine_->chunks(), (std::vector<std::string>{"a", "a"}));
  for (const auto& messages : {std::vector<v1::UpdateWeightsRequest>{}, {chunk}, {finish}, {begin, begin}})
    EXPECT_EQ(update(messages).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(update({begin, chunk}).error_code(), grpc::StatusCode::CANCELLED) << "it was not finished";
  begin.mutable_begin()->set_mode(static_cast<v1::SleepMode>(9));
  EXPECT_EQ(update({begin}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  begin.mutable_begin()->set_mode(v1::SLEEP_MODE_KEEP);
  engine_->set_weights_status(absl::InvalidArgumentError("no tensor 'a'"));
  EXPECT_EQ(update({begin, chunk, finish}).error_message(), "no tensor 'a'");
}

TEST_F(GrpcServicesTest, AnUpdateWhoseClientIsSilentIsGivenUp) {
  Start(ApiLimits{.weight_update_timeout = absl::Milliseconds(50)});
  grpc::ClientContext context;
  v1::UpdateWeightsResponse response;
  const auto writer = control_->UpdateWeights(&context, &response);
  v1::UpdateWeightsRequest begin;
  begin.mutable_begin();
  EXPECT_TRUE(writer->Write(begin));
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GrpcServicesTest, ResponsesSayWhichWeightsComputedThem) {
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, Request("abc", 5));
  for (v1::GenerateResponse response; reader->Read(&response);) EXPECT_EQ(response.weights_version(), 1);
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(GrpcServicesTest, Roll) {
  const auto roll = [this](const v1::RollRequest& request) {
    grpc::ClientContext context;
    v1::RollResponse response;
    return control_->Roll(&context, request, &response);
  };
  v1::RollRequest request;
  EXPECT_TRUE(roll(request).ok());
  EXPECT_EQ(engine_->roll_grace(), absl::Seconds(10));
  request.set_grace_s(0);
  EXPECT_TRUE(roll(request).ok());
  EXPECT_EQ(engine_->roll_grace(), absl::ZeroDuration());
  request.set_grace_s(-1);
  EXPECT_EQ(roll(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_grace_s(1);
  engine_->set_roll_status(absl::FailedPreconditionError("the engine has one replica"));
  const grpc::Status status = roll(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status.error_message(), "the engine has one replica");
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

TEST_F(GrpcServicesTest, SleepTakesTagsAndAModeAndTellsWhatItDid) {
  const auto sleep = [this](const v1::SleepRequest& request, v1::SleepResponse* response) {
    grpc::ClientContext context;
    return control_->Sleep(&context, request, response);
  };
  v1::SleepRequest request;
  request.add_tags("weights");
  request.set_mode(v1::SLEEP_MODE_ABORT);
  v1::SleepResponse response;
  ASSERT_TRUE(sleep(request, &response).ok());
  EXPECT_EQ(engine_->last_sleep().level, 1) << "without a level";
  EXPECT_EQ(engine_->last_sleep().tags, std::vector<std::string>{"weights"});
  EXPECT_EQ(engine_->last_sleep().mode, SleepMode::kAbort);
  EXPECT_EQ(response.report().tags().at("weights").state(), "backed_up");
  EXPECT_TRUE(response.report().tags().at("weights").changed());
  EXPECT_EQ(response.report().ranks(0).tags().at("weights").freed_bytes(), 7);
  request.add_tags("brain");
  EXPECT_EQ(sleep(request, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request.clear_tags();
  request.set_mode(static_cast<v1::SleepMode>(9));
  EXPECT_EQ(sleep(request, &response).error_message(), "mode: must be abort, wait or keep");
}

TEST_F(GrpcServicesTest, PauseAndResume) {
  const auto pause = [this](const v1::PauseRequest& request) {
    grpc::ClientContext context;
    v1::PauseResponse response;
    return control_->Pause(&context, request, &response);
  };
  v1::PauseRequest request;
  ASSERT_TRUE(pause(request).ok());
  EXPECT_EQ(engine_->last_pause().mode, SleepMode::kKeep);
  EXPECT_TRUE(engine_->last_pause().clear_cache);
  grpc::ClientContext of_status, of_resume;
  v1::GetStatusResponse status;
  ASSERT_TRUE(control_->GetStatus(&of_status, v1::GetStatusRequest(), &status).ok());
  EXPECT_TRUE(status.paused());
  EXPECT_EQ(status.state(), v1::ENGINE_STATE_PAUSED);
  v1::ResumeResponse resumed;
  ASSERT_TRUE(control_->Resume(&of_resume, v1::ResumeRequest(), &resumed).ok());
  EXPECT_EQ(resumed.state(), v1::ENGINE_STATE_AWAKE);
  request.set_mode(v1::SLEEP_MODE_WAIT);
  request.set_clear_cache(false);
  engine_->set_pause_status(absl::AbortedError("another call has ended the wait for open requests"));
  EXPECT_EQ(pause(request).error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(engine_->last_pause().mode, SleepMode::kWait);
  EXPECT_FALSE(engine_->last_pause().clear_cache);
  v1::SleepResponse slept;
  engine_->set_pause_status(absl::OkStatus());
  ASSERT_TRUE(Sleep(0, &slept).ok());
  EXPECT_EQ(engine_->state(), EngineState::kPaused);
  EXPECT_EQ(slept.level(), 0);
}

TEST_F(GrpcServicesTest, OperatorsAbortRequestsByTheirIds) {
  engine_->set_state(EngineState::kPaused);
  v1::GenerateRequest request = Request("abc", 5);
  request.set_request_id("mine");
  grpc::ClientContext context, of_abort;
  const auto reader = inference_->Generate(&context, request);
  while (engine_->num_open() == 0) absl::SleepFor(absl::Milliseconds(1));
  v1::AbortRequestsRequest abort;
  abort.add_request_ids("mine");
  v1::AbortRequestsResponse aborted;
  ASSERT_TRUE(control_->AbortRequests(&of_abort, abort, &aborted).ok());
  EXPECT_EQ(aborted.num_aborted(), 1);
  engine_->set_state(EngineState::kAwake);
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.choices(0).finish_reason(), "abort");
  EXPECT_EQ(response.choices(0).token_ids_size(), 0);
  EXPECT_TRUE(Drain(reader.get()).ok());
}

// A client of a later version sends level 1, and field 13.
TEST_F(GrpcServicesTest, AFieldThatIsNotKnownIsRefused) {
  grpc::Status status =
      CallWithBytes(control_channel_, "/somnus.v1.ControlService/Sleep", "\x08\x01\x6a\x08kv_cache");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "field 13 of SleepRequest is not known here");
  status = CallWithBytes(control_channel_, "/somnus.v1.ControlService/WakeUp", "\x70\x01");
  EXPECT_EQ(status.error_message(), "field 14 of WakeUpRequest is not known here");
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
    EXPECT_EQ(response.not_ready_reason(), engine_->Health().message());
    EXPECT_EQ(response.state_report().line(), engine_->Health().message());
    EXPECT_TRUE(response.group_epoch() == 3 && response.num_recoveries() == 2) << response.DebugString();
  }
}

}  // namespace
}  // namespace somnus
