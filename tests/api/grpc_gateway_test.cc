// The gateways' VllmEngine over a real channel, above a fake engine that repeats its prompt.

#include <set>

#include "absl/strings/match.h"
#include "coordinator/engine/kv_event_log.h"
#include "proto/vllm_engine.grpc.pb.h"
#include "tests/api/grpc_services_fixture.h"

namespace somnus {
namespace {

namespace wire = ::vllm::grpc::engine;
namespace common = ::smg::grpc::common;

class GrpcGatewayTest : public GrpcServicesTest {
 protected:
  void SetUp() override {
    options_.trusts_gateways = true;
    Begin(ApiLimits());
  }
  void Begin(const ApiLimits& limits) {
    Start(limits);
    stub_ = wire::VllmEngine::NewStub(channel_);
  }
  static wire::GenerateRequest Ask(const std::string& prompt, int max_tokens, bool stream) {
    wire::GenerateRequest request;
    request.set_request_id("g-1");
    request.set_stream(stream);
    for (const char c : prompt) request.mutable_tokenized()->add_input_ids(static_cast<unsigned char>(c));
    request.mutable_sampling_params()->set_max_tokens(max_tokens);
    return request;
  }
  struct Answer {
    std::vector<wire::GenerateStreamChunk> chunks;
    std::vector<wire::GenerateComplete> completes;
    grpc::Status status;
  };
  Answer Generate(const wire::GenerateRequest& request) {
    grpc::ClientContext context;
    const auto reader = stub_->Generate(&context, request);
    Answer answer;
    for (wire::GenerateResponse response; reader->Read(&response);) {
      if (response.has_chunk()) answer.chunks.push_back(response.chunk());
      if (response.has_complete()) answer.completes.push_back(response.complete());
    }
    answer.status = reader->Finish();
    return answer;
  }
  template <typename Ids>
  static std::string Text(const Ids& ids) {
    return std::string(ids.begin(), ids.end());
  }
  // Calls a method with a message for each.
  template <typename Request, typename Response>
  grpc::Status Call(grpc::Status (wire::VllmEngine::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                   Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    return (stub_.get()->*method)(&context, request, response);
  }

  std::unique_ptr<wire::VllmEngine::Stub> stub_;
};

TEST_F(GrpcGatewayTest, AStreamHasChunksAndTheWholeAtTheEnd) {
  const Answer answer = Generate(Ask("abc", 7, true));
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  std::string text;
  for (const wire::GenerateStreamChunk& chunk : answer.chunks) {
    text += Text(chunk.token_ids());
    EXPECT_EQ(chunk.prompt_tokens(), 3u);
    EXPECT_EQ(chunk.completion_tokens(), text.size());
  }
  EXPECT_EQ(text, "abcabca");
  ASSERT_EQ(answer.completes.size(), 1u);
  EXPECT_EQ(Text(answer.completes[0].output_ids()), "abcabca");
  EXPECT_EQ(answer.completes[0].finish_reason(), "length");
  EXPECT_EQ(answer.completes[0].prompt_tokens(), 3u);
  EXPECT_EQ(answer.completes[0].completion_tokens(), 7u);
  EXPECT_EQ(answer.completes[0].matched_stop_case(), wire::GenerateComplete::MATCHED_STOP_NOT_SET);
}

TEST_F(GrpcGatewayTest, WithoutAStreamThereIsTheWholeAlone) {
  wire::GenerateRequest request = Ask("abc", 4, false);
  request.mutable_sampling_params()->set_n(3);
  const Answer answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_TRUE(answer.chunks.empty());
  ASSERT_EQ(answer.completes.size(), 3u);
  std::set<uint32_t> indexes;
  for (const wire::GenerateComplete& complete : answer.completes) {
    indexes.insert(complete.index());
    EXPECT_EQ(Text(complete.output_ids()), "abca");
    EXPECT_EQ(complete.completion_tokens(), 4u);
  }
  EXPECT_EQ(indexes, (std::set<uint32_t>{0, 1, 2}));
}

TEST_F(GrpcGatewayTest, WhatEndedAChoiceIsTold) {
  wire::GenerateRequest request = Ask("abcd", 50, true);
  request.mutable_sampling_params()->add_stop("ca");
  request.mutable_sampling_params()->add_stop("cd");
  Answer answer = Generate(request);
  ASSERT_EQ(answer.completes.size(), 1u) << answer.status.error_message();
  EXPECT_EQ(answer.completes[0].finish_reason(), "stop");
  EXPECT_EQ(answer.completes[0].matched_stop_str(), "cd");
  EXPECT_EQ(Text(answer.completes[0].output_ids()), "abcd");

  request = Ask("abcd", 50, false);
  request.mutable_sampling_params()->add_stop_token_ids('c');
  answer = Generate(request);
  ASSERT_EQ(answer.completes.size(), 1u) << answer.status.error_message();
  EXPECT_EQ(answer.completes[0].finish_reason(), "stop");
  EXPECT_EQ(answer.completes[0].matched_token_id(), static_cast<uint32_t>('c'));
}

TEST_F(GrpcGatewayTest, WithoutALengthTheOutputGoesToTheEndOfTheContext) {
  wire::GenerateRequest request = Ask(std::string(4000, 'x'), 1, false);
  request.mutable_sampling_params()->clear_max_tokens();
  const Answer answer = Generate(request);
  ASSERT_EQ(answer.completes.size(), 1u) << answer.status.error_message();
  EXPECT_EQ(answer.completes[0].completion_tokens(), 96u);
  EXPECT_EQ(answer.completes[0].finish_reason(), "length");
}

TEST_F(GrpcGatewayTest, SamplingReachesTheEngine) {
  wire::GenerateRequest request = Ask("abc", 3, true);
  wire::SamplingParams* const sampling = request.mutable_sampling_params();
  sampling->set_temperature(0.5);
  sampling->set_top_p(0.75);
  sampling->set_top_k(7);
  sampling->set_min_p(0.25);
  sampling->set_frequency_penalty(0.5);
  sampling->set_presence_penalty(-0.5);
  sampling->set_repetition_penalty(1.25);
  sampling->set_seed(11);
  ASSERT_TRUE(Generate(request).status.ok());
  const SamplingParams got = engine_->last_sampling();
  EXPECT_FLOAT_EQ(got.temperature, 0.5);
  EXPECT_FLOAT_EQ(got.top_p, 0.75);
  EXPECT_EQ(got.top_k, 7);
  EXPECT_FLOAT_EQ(got.min_p, 0.25);
  EXPECT_FLOAT_EQ(got.frequency_penalty, 0.5);
  EXPECT_FLOAT_EQ(got.presence_penalty, -0.5);
  EXPECT_FLOAT_EQ(got.repetition_penalty, 1.25);
  EXPECT_EQ(engine_->seeds().back(), 11u);
  // Numbers that are 0 where 0 makes no sense are not set.
  ASSERT_TRUE(Generate(Ask("abc", 3, true)).status.ok());
  EXPECT_FLOAT_EQ(engine_->last_sampling().top_p, 1);
  EXPECT_FLOAT_EQ(engine_->last_sampling().repetition_penalty, 1);
}

TEST_F(GrpcGatewayTest, TheLastTokensOfALongPromptAreKept) {
  wire::GenerateRequest request = Ask("abcdef", 3, true);
  request.mutable_sampling_params()->set_truncate_prompt_tokens(2);
  const Answer answer = Generate(request);
  ASSERT_EQ(answer.completes.size(), 1u) << answer.status.error_message();
  EXPECT_EQ(Text(answer.completes[0].output_ids()), "efe");
  EXPECT_EQ(answer.completes[0].prompt_tokens(), 2u);
}

TEST_F(GrpcGatewayTest, WhatCannotBeServedIsNamed) {
  const std::pair<const char*, std::function<void(wire::GenerateRequest*)>> cases[] = {
      {"prompt", [](auto* r) { r->clear_tokenized(); }},
      {"prompt", [](auto* r) { r->mutable_tokenized()->clear_input_ids(); }},
      {"prompt", [](auto* r) { r->mutable_tokenized()->add_input_ids(4'000'000'000u); }},
      {"max_tokens", [](auto* r) { r->mutable_sampling_params()->set_max_tokens(4'000'000'000u); }},
      {"max_tokens", [](auto* r) { r->mutable_sampling_params()->set_max_tokens(0); }},
      {"n", [](auto* r) { r->mutable_sampling_params()->set_n(4'000'000'000u); }},
      {"logprobs", [](auto* r) { r->mutable_sampling_params()->set_logprobs(-1); }},
      {"temperature", [](auto* r) { r->mutable_sampling_params()->set_temperature(-1); }},
      {"truncate_prompt_tokens",
       [](auto* r) { r->mutable_sampling_params()->set_truncate_prompt_tokens(0); }},
      {"mm_inputs", [](auto* r) { r->mutable_mm_inputs(); }},
      {"mm_inputs", [](auto* r) { r->add_extra_mm_inputs(); }},
      {"media_refs", [](auto* r) { r->mutable_media_refs(); }},
      {"kv_transfer_params", [](auto* r) { r->set_kv_transfer_params_json("{}"); }},
      {"data_parallel_rank", [](auto* r) { r->set_data_parallel_rank(1); }},
  };
  for (const auto& [field, change] : cases) {
    wire::GenerateRequest request = Ask("abc", 3, true);
    change(&request);
    const grpc::Status status = Generate(request).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_EQ(status.error_message().substr(0, status.error_message().find(':')), field);
  }
  EXPECT_EQ(engine_->num_open(), 0u);
}

TEST_F(GrpcGatewayTest, AConstraintThatTheModelCannotHaveIsRefused) {
  wire::GenerateRequest request = Ask("abc", 3, true);
  request.mutable_sampling_params()->set_json_schema(R"({"type": "object"})");
  const grpc::Status status = Generate(request).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(status.error_message(), "structured outputs")) << status.error_message();
}

TEST_F(GrpcGatewayTest, AnAbortedRequestEndsWithWhatItHas) {
  engine_ = std::make_shared<FakeEngine>(absl::Milliseconds(10));
  Begin(ApiLimits());
  wire::GenerateRequest request = Ask("abc", 4000, true);
  request.set_request_id("mine");
  grpc::ClientContext context, other_context;
  const auto reader = stub_->Generate(&context, request);
  wire::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  v1::GenerateRequest other = Request("abc", 4000);
  other.set_request_id("mine");
  const auto other_reader = inference_->Generate(&other_context, other);
  v1::GenerateResponse other_response;
  ASSERT_TRUE(other_reader->Read(&other_response));
  wire::GenerateRequest unnamed = Ask("abc", 4000, true);
  unnamed.clear_request_id();
  grpc::ClientContext unnamed_context;
  const auto unnamed_reader = stub_->Generate(&unnamed_context, unnamed);
  wire::GenerateResponse unnamed_response;
  ASSERT_TRUE(unnamed_reader->Read(&unnamed_response));
  wire::AbortRequest abort;
  abort.add_request_ids("unknown");
  abort.add_request_ids("");
  abort.add_request_ids("mine");
  wire::AbortResponse aborted;
  ASSERT_TRUE(Call(&wire::VllmEngine::Stub::Abort, abort, &aborted).ok());
  while (reader->Read(&response)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(response.complete().finish_reason(), "abort");
  EXPECT_LT(response.complete().completion_tokens(), 4000u);
  EXPECT_EQ(engine_->num_open(), 2u) << "the call of the other service goes on, and that without an id";
  other_context.TryCancel();
  unnamed_context.TryCancel();
  EXPECT_TRUE(engine_->WaitIdle());
}

TEST_F(GrpcGatewayTest, AClientThatLeavesAbortsItsRequest) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Ask("abc", 4000, true));
  wire::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  context.TryCancel();
  EXPECT_TRUE(engine_->WaitIdle());
  EXPECT_GE(engine_->num_aborted(), 1);
}

TEST_F(GrpcGatewayTest, OpenCallsOfBothServicesAreBoundedTogether) {
  Begin(ApiLimits{.max_open_calls = 1});
  gate_.Close();
  grpc::ClientContext context;
  const auto stuck = inference_->Generate(&context, Request("!", 100));
  gate_.AwaitWaiter();
  EXPECT_EQ(Generate(Ask("abc", 3, true)).status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  gate_.Open();
  EXPECT_TRUE(Drain(stuck.get()).ok());
}

TEST_F(GrpcGatewayTest, OutputsThatWaitAreBounded) {
  Begin(ApiLimits{.max_response_bytes = 1000});
  const grpc::Status status = Generate(Ask("abc", 1000, false)).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(engine_->WaitIdle());
  EXPECT_TRUE(Generate(Ask("abc", 20, false)).status.ok());
}

TEST_F(GrpcGatewayTest, HealthFollowsTheEngine) {
  wire::HealthCheckResponse response;
  ASSERT_TRUE(Call(&wire::VllmEngine::Stub::HealthCheck, {}, &response).ok());
  EXPECT_TRUE(response.healthy());
  for (const EngineState state : {EngineState::kAsleep, EngineState::kRecovering, EngineState::kDraining}) {
    engine_->set_state(state);
    ASSERT_TRUE(Call(&wire::VllmEngine::Stub::HealthCheck, {}, &response).ok());
    EXPECT_FALSE(response.healthy()) << EngineStateName(state);
    EXPECT_FALSE(response.message().empty());
  }
  engine_->set_state(EngineState::kAwake);
  ASSERT_TRUE(Call(&wire::VllmEngine::Stub::HealthCheck, {}, &response).ok());
  EXPECT_TRUE(response.healthy());
}

TEST_F(GrpcGatewayTest, RefusalsOfTheEngineKeepTheirCodes) {
  engine_->set_submit_status(absl::ResourceExhaustedError("the queue is full"));
  EXPECT_EQ(Generate(Ask("abc", 3, true)).status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  engine_->set_submit_status(absl::FailedPreconditionError("asleep"));
  EXPECT_EQ(Generate(Ask("abc", 3, true)).status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  engine_->set_submit_status(absl::UnavailableError("draining"));
  EXPECT_EQ(Generate(Ask("abc", 3, true)).status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(GrpcGatewayTest, FactsAndLoads) {
  wire::GetModelInfoResponse model;
  ASSERT_TRUE(Call(&wire::VllmEngine::Stub::GetModelInfo, {}, &model).ok());
  EXPECT_EQ(model.served_model_name(), "fake");
  EXPECT_EQ(model.max_context_length(), 4096u);
  EXPECT_EQ(model.max_req_input_len(), 4095);
  EXPECT_TRUE(model.is_generation());
  EXPECT_TRUE(model.tokenizer_path().empty());
  ASSERT_TRUE(Generate(Ask("abc", 3, true)).status.ok());
  wire::GetServerInfoResponse server;
  ASSERT_TRUE(Call(&wire::VllmEngine::Stub::GetServerInfo, {}, &server).ok());
  EXPECT_GT(server.last_receive_timestamp(), 1e9);
  EXPECT_FALSE(server.is_paused());
  wire::GetLoadsResponse loads;
  ASSERT_TRUE(Call(&wire::VllmEngine::Stub::GetLoads, {}, &loads).ok());
  ASSERT_EQ(loads.loads_size(), 1);
  EXPECT_EQ(loads.dp_rank_count(), 1);
  EXPECT_EQ(loads.loads(0).num_running_reqs(), 0);
  wire::GetLoadsRequest second;
  second.set_dp_rank(1);
  EXPECT_EQ(Call(&wire::VllmEngine::Stub::GetLoads, second, &loads).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(GrpcGatewayTest, TheKeyIsWantedExceptForHealth) {
  options_.api_keys = ApiKeys("secret");
  Begin(ApiLimits());
  wire::HealthCheckResponse health;
  EXPECT_TRUE(Call(&wire::VllmEngine::Stub::HealthCheck, {}, &health).ok());
  wire::GetModelInfoResponse model;
  EXPECT_EQ(Call(&wire::VllmEngine::Stub::GetModelInfo, {}, &model).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Generate(Ask("abc", 3, true)).status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  wire::AbortResponse aborted;
  EXPECT_EQ(Call(&wire::VllmEngine::Stub::Abort, {}, &aborted).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer secret");
  EXPECT_TRUE(stub_->GetModelInfo(&context, {}, &model).ok());
}

TEST_F(GrpcGatewayTest, AnEmbeddingIsOneVectorOfLengthOne) {
  wire::EmbedRequest request;
  for (const char c : std::string("abc")) request.mutable_tokenized()->add_input_ids(c);
  wire::EmbedResponse response;
  const grpc::Status status = Call(&wire::VllmEngine::Stub::Embed, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.embedding_size(), 4);
  EXPECT_EQ(response.embedding_dim(), 4u);
  EXPECT_EQ(response.prompt_tokens(), 3u);
  // The fake engine's vector is 97, 99, 3, 1.
  EXPECT_FLOAT_EQ(response.embedding(0) * 99, response.embedding(1) * 97);
  double squares = 0;
  for (const float x : response.embedding()) squares += double{x} * x;
  EXPECT_NEAR(squares, 1, 1e-5);
  EXPECT_EQ(Call(&wire::VllmEngine::Stub::Embed, {}, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(GrpcGatewayTest, WhatSomnusDoesNotHaveIsUnimplementedWithAReason) {
  common::ProfileResponse profile;
  for (const grpc::Status& status : {Call(&wire::VllmEngine::Stub::StartProfile, {}, &profile),
                                     Call(&wire::VllmEngine::Stub::StopProfile, {}, &profile)}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
    EXPECT_FALSE(status.error_message().empty());
  }
  grpc::ClientContext context;
  const auto reader = stub_->GetTokenizer(&context, {});
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);  // a model without files
}

TEST_F(GrpcGatewayTest, AServerThatDoesNotTrustGatewaysKeepsEventsAndTheCache) {
  options_.trusts_gateways = false;
  kv_events_ = std::make_shared<KvEventLog>(KvEventLogOptions{.max_events = 100, .block_size = 2});
  Begin(ApiLimits());
  common::FlushCacheResponse flushed;
  const grpc::Status flush = Call(&wire::VllmEngine::Stub::FlushCache, {}, &flushed);
  EXPECT_EQ(flush.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  grpc::ClientContext context;
  const grpc::Status events = stub_->SubscribeKvEvents(&context, {})->Finish();
  EXPECT_EQ(events.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  for (const grpc::Status& status : {flush, events})
    EXPECT_TRUE(absl::StrContains(status.error_message(), "--trust-gateways")) << status.error_message();
}

TEST_F(GrpcGatewayTest, TheCacheIsFlushed) {
  common::FlushCacheResponse flushed;
  ASSERT_TRUE(Call(&wire::VllmEngine::Stub::FlushCache, {}, &flushed).ok());
  EXPECT_TRUE(flushed.success());
  EXPECT_FALSE(engine_->preempt_running());
}

class GrpcGatewayEventsTest : public GrpcGatewayTest {
 protected:
  using Kind = BlockEvent::Kind;
  void SetUp() override {
    kv_events_ = std::make_shared<KvEventLog>(
        KvEventLogOptions{.max_events = 100, .block_size = 2, .first_sequence = 10});
    GrpcGatewayTest::SetUp();
  }
  void Store(uint64_t id, uint64_t parent = 0) {
    kv_events_->Append(
        0, {{.kind = Kind::kStored, .content_ids = {id}, .parent_content_id = parent, .tokens = {1, 2}}},
        absl::FromUnixSeconds(7));
  }
};

TEST_F(GrpcGatewayEventsTest, ASnapshotComesFirstThenEvents) {
  Store(1);
  Store(2, 1);
  grpc::ClientContext context;
  const auto reader = stub_->SubscribeKvEvents(&context, {});
  common::KvEventBatch batch;
  ASSERT_TRUE(reader->Read(&batch));
  EXPECT_EQ(batch.sequence_number(), 11u);
  EXPECT_EQ(batch.snapshot().index(), 0u);
  EXPECT_EQ(batch.snapshot().count(), 1u);
  EXPECT_EQ(batch.snapshot().blocks(), 2u);
  EXPECT_EQ(batch.snapshot().unknown_before(), 0u);
  ASSERT_EQ(batch.events_size(), 2);
  EXPECT_TRUE(batch.events(0).has_cleared());
  EXPECT_EQ(batch.events(1).stored().blocks_size(), 2);
  EXPECT_TRUE(batch.has_load());
  EXPECT_FALSE(batch.load().load_only());
  Store(3, 2);
  do {
    ASSERT_TRUE(reader->Read(&batch));
  } while (batch.load().load_only());
  EXPECT_EQ(batch.sequence_number(), 12u);
  EXPECT_FALSE(batch.has_snapshot());
  ASSERT_EQ(batch.events_size(), 1);
  const common::KvBlocksStored& stored = batch.events(0).stored();
  EXPECT_EQ(stored.parent_block_hash(), 2);
  EXPECT_EQ(stored.blocks(0).block_hash(), 3);
  EXPECT_EQ(stored.blocks(0).token_ids_size(), 2);
  EXPECT_EQ(stored.blocks(0).block_size(), 2);
  EXPECT_EQ(stored.tier(), common::KV_CACHE_TIER_DEVICE);
  EXPECT_EQ(stored.medium(), "GPU");
  context.TryCancel();
}

TEST_F(GrpcGatewayEventsTest, AGatewayGoesOnFromANumber) {
  Store(1);
  Store(2, 1);
  kv_events_->Append(0, {{.kind = Kind::kRemoved, .content_ids = {2}}}, absl::FromUnixSeconds(8));
  common::SubscribeKvEventsRequest request;
  request.set_start_sequence_number(11);
  grpc::ClientContext context;
  const auto reader = stub_->SubscribeKvEvents(&context, request);
  common::KvEventBatch batch;
  ASSERT_TRUE(reader->Read(&batch));
  EXPECT_EQ(batch.sequence_number(), 11u);
  ASSERT_TRUE(reader->Read(&batch));
  EXPECT_EQ(batch.sequence_number(), 12u);
  EXPECT_EQ(batch.events(0).removed().block_hashes(0), 2);
  context.TryCancel();
}

TEST_F(GrpcGatewayEventsTest, LoadsComeWhileTheCacheIsQuiet) {
  Store(1);
  grpc::ClientContext context;
  const auto reader = stub_->SubscribeKvEvents(&context, {});
  common::KvEventBatch batch;
  ASSERT_TRUE(reader->Read(&batch));
  const uint64_t sequence = batch.sequence_number(), sample = batch.load().sample();
  ASSERT_TRUE(reader->Read(&batch));
  EXPECT_TRUE(batch.load().load_only());
  EXPECT_EQ(batch.events_size(), 0);
  EXPECT_EQ(batch.sequence_number(), sequence);
  EXPECT_GT(batch.load().sample(), sample);
  context.TryCancel();
}

}  // namespace
}  // namespace somnus
