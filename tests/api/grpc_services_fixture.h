#pragma once
// Both gRPC services, each at a listener of its own, above a fake engine.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "coordinator/grpc/grpc_services.h"
#include "coordinator/metrics/metrics.h"
#include "proto/control.grpc.pb.h"
#include "proto/inference.grpc.pb.h"
#include "tests/api/gated_tokenizer.h"

namespace somnus {

class GrpcServicesTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(ApiLimits()); }
  void Start(const ApiLimits& limits) {
    Stop();
    options_.limits = limits;
    services_ = GrpcServices::Create(options_, Metrics::Create("fake", 4096));
    ServedModel model = GatedModel(engine_, &gate_);
    model.rank_status = [this] {
      if (rank_status_) return rank_status_();
      gate_.Pass();
      std::vector<v1::RankStatus> ranks(1);
      ranks[0].set_host(std::string(host_bytes_, 'h'));
      return ranks;
    };
    model.kv_events = kv_events_;
    services_->SetModel(std::move(model));
    grpc::ServerBuilder inference, control;
    services_->RegisterInference(&inference);
    services_->RegisterControl(&control);
    channel_ = Listen(&inference, &server_);
    control_channel_ = Listen(&control, &control_server_);
    inference_ = v1::InferenceService::NewStub(channel_);
    control_ = v1::ControlService::NewStub(control_channel_);
  }
  // Starts a listener, and dials its address.
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
  // Opens a stream of about 1 MB that is not read, and waits until a second call may be open: at most one may
  // be open.
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

  // The host bytes in GetStatus's reply.
  size_t host_bytes_ = 1;
  // If set: the ranks' status in place of the default.
  std::function<std::vector<v1::RankStatus>()> rank_status_;
  std::shared_ptr<KvEventLog> kv_events_;  // of the model that Start serves
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

// Calls `method` with these bytes as its message.
inline grpc::Status CallWithBytes(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
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

}  // namespace somnus
