// Update ports: who gets through, and until when.

#include "worker/update_port.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <memory>
#include <string>

#include "absl/strings/strip.h"
#include "proto/cluster_trust.h"
#include "proto/status.h"
#include "proto/weights.grpc.pb.h"
#include "proto/worker.grpc.pb.h"
#include "tests/fakes/temp_dir.h"
#include "tests/worker/fake_parts.h"
#include "worker/listen_address.h"
#include "worker/worker_service.h"

namespace somnus {
namespace {

// A worker that the coordinator reaches in process, with ports beside `listen`.
class UpdatePortTest : public testing::Test {
 protected:
  UpdatePortTest() : worker_({.num_threads = 1}, FakeParts(&control_)) {}
  ~UpdatePortTest() override { server_->Shutdown(); }

  void Start(const std::string& listen) {
    address_ = std::make_unique<ListenAddress>(*ListenAddress::Choose("", listen));
    service_ = MakeWorkerService(
        &worker_, [] {}, UpdatePortsBeside(address_.get(), ""));
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::WorkerService::NewStub(server_->InProcessChannel({}));
    ASSERT_TRUE(Fence(1));
    ASSERT_TRUE(worker_.LoadModel(LoadRequest(), [](int64_t, int64_t) {}).ok());
    ASSERT_TRUE(worker_.JoinGroup(JoinRequest()).ok());
    ASSERT_TRUE(worker_.AllocateKvCache(KvRequest()).ok());
  }
  std::string InDirectory() const { return absl::StrCat("unix:", directory_.path(), "/worker.sock"); }

  bool Fence(int64_t epoch) {
    grpc::ClientContext context;
    v1::FenceRequest request;
    request.set_group_epoch(epoch);
    v1::FenceResponse response;
    return stub_->Fence(&context, request, &response).ok();
  }
  v1::UpdatePort Begin(const std::string& id, const std::string& token, uint64_t operation = 1) {
    v1::BeginWeightUpdateRequest request;
    request.set_group_epoch(1);
    request.set_operation_id(operation);
    request.set_update_id(id);
    request.set_update_port_token(token);
    grpc::ClientContext context;
    v1::BeginWeightUpdateResponse response;
    const grpc::Status status = stub_->BeginWeightUpdate(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.has_update_port(), !token.empty());
    return response.update_port();
  }

  // A stream of the coordinator, which names the update and nothing else.
  struct Hold {
    Hold(v1::WorkerService::Stub* stub, const std::string& id)
        : writer(stub->UpdateWeights(&context, &response)) {
      v1::WorkerUpdateWeightsRequest request;
      request.set_group_epoch(1);
      request.set_update_id(id);
      writer->Write(request);
    }
    absl::Status Finish() {
      writer->WritesDone();
      return FromGrpcStatus(writer->Finish());
    }
    grpc::ClientContext context;
    v1::WorkerUpdateWeightsResponse response;
    std::unique_ptr<grpc::ClientWriter<v1::WorkerUpdateWeightsRequest>> writer;
  };

  // A stream of a trainer.
  struct Trainer {
    Trainer(const v1::UpdatePort& port, const std::string& token, int64_t epoch = 1,
            const std::string& id = "u")
        : stub(v1::UpdatePortService::NewStub(Dial(port))) {
      if (!token.empty()) context.AddMetadata(kUpdateTokenKey, token);
      writer = stub->UpdateWeights(&context, &response);
      request.set_group_epoch(epoch);
      request.set_update_id(id);
    }
    static std::shared_ptr<grpc::Channel> Dial(const v1::UpdatePort& port) {
      if (port.certificate().empty())
        return grpc::CreateChannel(port.address(), grpc::experimental::LocalCredentials(UDS));
      grpc::SslCredentialsOptions options;
      options.pem_root_certs = port.certificate();
      grpc::ChannelArguments arguments;
      arguments.SetSslTargetNameOverride(kUpdatePortName);
      return grpc::CreateCustomChannel(port.address(), grpc::SslCredentials(options), arguments);
    }
    bool Send(const v1::WeightChunk& chunk) {
      *request.mutable_chunk() = chunk;
      const bool sent = writer->Write(request);
      request.Clear();
      return sent;
    }
    absl::Status Finish() {
      writer->WritesDone();
      return FromGrpcStatus(writer->Finish());
    }
    // Sends a stream that has all tensors.
    absl::Status SendAll(float value) {
      for (const v1::WeightChunk& chunk : AllTensors(value)) Send(chunk);
      return Finish();
    }

    const std::unique_ptr<v1::UpdatePortService::Stub> stub;
    grpc::ClientContext context;
    v1::WorkerUpdateWeightsRequest request;
    v1::WorkerUpdateWeightsResponse response;
    std::unique_ptr<grpc::ClientWriter<v1::WorkerUpdateWeightsRequest>> writer;
  };

  absl::Status FinishUpdate(const std::string& id, int64_t version) {
    v1::FinishWeightUpdateRequest request;
    request.set_group_epoch(1);
    request.set_update_id(id);
    request.set_weights_version(version);
    return worker_.FinishWeightUpdate(request);
  }

  TempDir directory_;
  FakeModelControl control_;
  Worker worker_;
  std::unique_ptr<ListenAddress> address_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
};

TEST_F(UpdatePortTest, ATrainersTensorsAreServed) {
  Start(InDirectory());
  const v1::UpdatePort port = Begin("u", "secret");
  EXPECT_EQ(port.address(), absl::StrCat(InDirectory(), ".update"));
  EXPECT_EQ(port.certificate(), "");
  const std::string path(absl::StripPrefix(port.address(), "unix:"));
  struct stat info = {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  Hold hold(stub_.get(), "u");
  Trainer trainer(port, "secret");
  ASSERT_EQ(trainer.SendAll(3), absl::OkStatus());
  EXPECT_EQ(trainer.response.num_tensors(), 11);
  ASSERT_EQ(hold.Finish(), absl::OkStatus());
  EXPECT_EQ(hold.response.SerializeAsString(), trainer.response.SerializeAsString()) << "of all streams";
  EXPECT_NE(stat(path.c_str(), &info), 0) << "the port has closed";
  ASSERT_EQ(FinishUpdate("u", 2), absl::OkStatus());
  EXPECT_EQ(RunStep(worker_, EmptyStep(1)).tokens(0).token_id(), 1 + 3);
}

TEST_F(UpdatePortTest, OverTcpItShowsTheCertificateThatTheCoordinatorWasTold) {
  Start("127.0.0.1:0");
  const v1::UpdatePort port = Begin("u", "secret");
  ASSERT_NE(port.certificate(), "");
  Hold hold(stub_.get(), "u");
  EXPECT_EQ(Trainer(port, "secret").SendAll(3), absl::OkStatus());
  v1::UpdatePort other = port;
  other.set_certificate(SelfSignedIdentity(kUpdatePortName)->certificate);
  EXPECT_EQ(Trainer(other, "secret").SendAll(3).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Trainer(port, "public").SendAll(3).code(), absl::StatusCode::kUnauthenticated);
  other.set_certificate("");
  grpc::ClientContext context;
  context.AddMetadata(kUpdateTokenKey, "secret");
  const auto plain =
      v1::UpdatePortService::NewStub(grpc::CreateChannel(port.address(), grpc::InsecureChannelCredentials()));
  v1::WorkerUpdateWeightsResponse response;
  EXPECT_FALSE(plain->UpdateWeights(&context, &response)->Finish().ok());
}

TEST_F(UpdatePortTest, StrangersAreRefused) {
  Start(InDirectory());
  const v1::UpdatePort port = Begin("u", "secret");
  Hold hold(stub_.get(), "u");
  for (const std::string token : {"", "secre", "secrets", "SECRET"}) {
    const absl::Status status = Trainer(port, token).SendAll(9);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
  }
  EXPECT_EQ(control_.num_placed, 0);
  EXPECT_EQ(Trainer(port, "secret", /*epoch=*/2).SendAll(9).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Trainer(port, "secret", 1, "v").SendAll(9),
            absl::FailedPreconditionError("UpdateWeights: update v is not under way"));
  EXPECT_EQ(control_.num_placed, 0);
  // Nothing else is behind the port: no other service answers.
  grpc::ClientContext context;
  context.AddMetadata(kUpdateTokenKey, "secret");
  const auto worker = v1::WorkerService::NewStub(Trainer::Dial(port));
  v1::WorkerShutdownResponse response;
  EXPECT_EQ(worker->Shutdown(&context, v1::WorkerShutdownRequest(), &response).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

// A coordinator that gives the update up, or that is lost.
TEST_F(UpdatePortTest, ThePortClosesWithTheCoordinatorsStream) {
  Start(InDirectory());
  const v1::UpdatePort port = Begin("u", "secret");
  auto hold = std::make_unique<Hold>(stub_.get(), "u");
  Trainer trainer(port, "secret");
  ASSERT_TRUE(trainer.Send(AllTensors(3)[0]));
  while (control_.num_placed == 0) absl::SleepFor(absl::Milliseconds(1));  // the worker has begun to place
  hold->context.TryCancel();
  EXPECT_FALSE(hold->Finish().ok());
  EXPECT_FALSE(FromGrpcStatus(trainer.writer->Finish()).ok()) << "also without the trainer's word";
  EXPECT_EQ(Trainer(port, "secret").SendAll(3).code(), absl::StatusCode::kUnavailable);
  const v1::UpdatePort next = Begin("v", "other", 2);
  Hold again(stub_.get(), "v");
  EXPECT_EQ(Trainer(next, "secret", 1, "v").SendAll(3).code(), absl::StatusCode::kUnauthenticated)
      << "the token of an update that is over";
  EXPECT_EQ(Trainer(next, "other", 1, "v").SendAll(3), absl::OkStatus());
}

// The stream of an update that is over ends late.
TEST_F(UpdatePortTest, AnOldStreamClosesNoNewPort) {
  Start(InDirectory());
  Begin("u", "secret");
  Hold old(stub_.get(), "u");
  const v1::UpdatePort port = Begin("v", "other", 2);
  Hold hold(stub_.get(), "v");
  EXPECT_FALSE(old.Finish().ok()) << "its update is over";
  EXPECT_EQ(Trainer(port, "other", 1, "v").SendAll(3), absl::OkStatus());
}

TEST_F(UpdatePortTest, AFenceClosesThePort) {
  Start(InDirectory());
  const v1::UpdatePort port = Begin("u", "secret");
  Trainer trainer(port, "secret");
  ASSERT_TRUE(trainer.Send(AllTensors(3)[0]));
  while (control_.num_placed == 0) absl::SleepFor(absl::Milliseconds(1));  // the worker has begun to place
  ASSERT_TRUE(Fence(2));
  EXPECT_FALSE(FromGrpcStatus(trainer.writer->Finish()).ok());
  EXPECT_EQ(Trainer(port, "secret", 2).SendAll(3).code(), absl::StatusCode::kUnavailable);
}

// Tensors that the trainer cannot send itself come through the coordinator.
TEST_F(UpdatePortTest, TheCoordinatorsStreamMayHaveChunksToo) {
  Start(InDirectory());
  Begin("u", "secret");
  Hold hold(stub_.get(), "u");
  for (const v1::WeightChunk& chunk : AllTensors(3)) {
    v1::WorkerUpdateWeightsRequest request;
    *request.mutable_chunk() = chunk;
    ASSERT_TRUE(hold.writer->Write(request));
  }
  ASSERT_EQ(hold.Finish(), absl::OkStatus());
  EXPECT_EQ(hold.response.num_tensors(), 11);
  EXPECT_EQ(FinishUpdate("u", 2), absl::OkStatus());
}

TEST_F(UpdatePortTest, WithoutATokenThereIsNoPort) {
  Start(InDirectory());
  EXPECT_EQ(Begin("u", "").address(), "");
  const v1::UpdatePort port = Begin("v", "secret", 2);
  EXPECT_EQ(Begin("w", "", 3).address(), "");
  EXPECT_EQ(Trainer(port, "secret", 1, "v").SendAll(3).code(), absl::StatusCode::kUnavailable)
      << "nor is there that of an update before";
}

}  // namespace
}  // namespace somnus
