#include "coordinator/grpc/update_weights_call.h"

#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "base/monotonic.h"
#include "base/random_hex.h"
#include "base/threads.h"
#include "coordinator/engine/caller.h"
#include "coordinator/grpc/calls/grpc_call.h"
#include "coordinator/grpc/control_fields.h"
#include "coordinator/grpc/update_watch.h"
#include "proto/status.h"

namespace somnus {
namespace {

constexpr size_t kPortTokenBytes = 32;
constexpr char kGoesOn[] = "message: an update goes on with chunk or finish";

grpc::Status Invalid(const char* message) { return {grpc::StatusCode::INVALID_ARGUMENT, message}; }

using ReadMessage = std::function<bool()>;

int64_t BytesOf(const v1::WeightChunk& chunk) {
  if (chunk.has_shared_memory()) return chunk.shared_memory().bytes();
  if (chunk.has_cuda_memory()) return chunk.cuda_memory().bytes();
  return static_cast<int64_t>(chunk.data().size());
}

// The name, dtype and shape of a chunk's tensor, without data.
v1::WeightChunk HeadOf(const v1::WeightChunk& chunk) {
  v1::WeightChunk head;
  head.set_name(chunk.name());
  head.set_dtype(chunk.dtype());
  *head.mutable_shape() = chunk.shape();
  return head;
}

// The engine's side of an update. An update that has ended before its client has noticed is destroyed at
// once: a later call of an engine with replicas has its turn only then. The end of an update waits for all
// replicas, so a thread of its own destroys the update, and Check never blocks. Not thread safe: the watch
// calls Check only while the call's thread waits for the client.
class OpenUpdate {
 public:
  explicit OpenUpdate(std::unique_ptr<WeightUpdate> update) : update_(std::move(update)) {}
  // Blocks until the update is no more.
  ~OpenUpdate() {
    if (end_.joinable()) end_.join();
  }
  OpenUpdate(const OpenUpdate&) = delete;

  // Ok while the update goes on; else the error that has ended the update.
  absl::Status Check() {
    if (!ended_.ok()) return ended_;
    ended_ = update_->status();
    if (ended_.ok()) return ended_;
    // Where no thread is to be had, the update ends with this object.
    if (absl::StatusOr<std::thread> end = StartThread([this] { update_.reset(); }); end.ok())
      end_ = *std::move(end);
    return ended_;
  }
  // After a Check that was ok.
  WeightUpdate* get() { return update_.get(); }

 private:
  std::unique_ptr<WeightUpdate> update_;  // of the thread end_ once there is that thread
  absl::Status ended_;
  std::thread end_;
};

// The client's side of an update.
class UpdateClient {
 public:
  UpdateClient(const UpdateMessages& messages, UpdateWatch* watch) : messages_(messages), watch_(*watch) {}

  bool direct() const { return messages_.write_ports != nullptr; }
  bool Read() {
    watch_.SetWaits(true);
    const bool got = messages_.read(&message);
    watch_.SetWaits(false);
    if (got && message.has_chunk()) watch_.NoteBytes(num_bytes_ += BytesOf(message.chunk()));
    if (got && message.has_progress()) watch_.NoteBytes(num_bytes_ + message.progress().num_bytes());
    return got;
  }
  // The reason why Read has returned false.
  grpc::Status Left() const {
    const absl::Status reason = watch_.reason();
    if (!reason.ok()) return ToGrpcStatus(reason);
    return {grpc::StatusCode::CANCELLED, "the client left before it had finished the update"};
  }
  void WritePorts(const std::string& token, const std::vector<v1::UpdatePort>& all) const {
    v1::DirectUpdateWeightsResponse::Ports ports;
    ports.set_token(token);
    for (const v1::UpdatePort& port : all) *ports.add_ports() = port;
    messages_.write_ports(ports);
  }

  v1::UpdateWeightsRequest message;  // the last message that was read

 private:
  const UpdateMessages& messages_;
  UpdateWatch& watch_;
  int64_t num_bytes_ = 0;  // of the chunks that were read
};

// Sends the chunk in client->message, and all chunks that follow, on to the engine, until finish comes.
grpc::Status ReceiveChunks(const Engine& engine, OpenUpdate* update, UpdateClient* client) {
  v1::UpdateWeightsRequest& message = client->message;
  do {
    if (absl::Status ended = update->Check(); !ended.ok()) return EngineRefusal(ended, engine);
    if (message.has_finish()) return CheckKnownFields(message.finish());
    if (client->direct() && message.has_progress()) continue;
    if (!message.has_chunk()) return Invalid(kGoesOn);
    if (grpc::Status status = CheckKnownFields(message.chunk()); !status.ok()) return status;
    if (absl::Status sent = update->get()->Send(std::move(*message.mutable_chunk())); !sent.ok())
      return EngineRefusal(sent, engine);
    if (absl::Status ended = update->Check(); !ended.ok()) return EngineRefusal(ended, engine);
  } while (client->Read());
  return client->Left();
}

std::optional<ReceivedWeights> Expected(const v1::UpdateWeightsRequest::Finish& finish) {
  if (!finish.has_received()) return std::nullopt;
  return ReceivedWeights{finish.received().num_tensors(), finish.received().num_bytes(),
                         finish.received().checksum()};
}

grpc::Status ReadBegin(const FindEngine& find, const v1::UpdateWeightsRequest::Begin& begin, Engine** engine,
                       WeightsRequest* request) {
  if (grpc::Status status = find(begin.model(), engine); !status.ok()) return status;
  if (grpc::Status status = CheckKnownFields(begin); !status.ok()) return status;
  for (const v1::WeightChunk& tensor : begin.tensors()) {
    if (grpc::Status status = CheckKnownFields(tensor); !status.ok()) return status;
    request->tensors.push_back(HeadOf(tensor));
  }
  return ReadWeightsFields(begin, request);
}

}  // namespace

grpc::Status ReceiveWeights(const FindEngine& find, grpc::ServerContext* context, const Caller& caller,
                            const UpdateMessages& messages, v1::UpdateWeightsResponse* response,
                            const UpdatePace& pace) {
  const MonotonicTime start = MonotonicNow();
  const absl::StatusOr<std::unique_ptr<UpdateWatch>> watch =
      UpdateWatch::Start(pace, [context] { context->TryCancel(); });
  if (!watch.ok()) return ToGrpcStatus(watch.status());
  UpdateClient client(messages, watch->get());
  if (!client.Read() || !client.message.has_begin()) {
    return (*watch)->reason().ok() ? Invalid("begin: it is the first message of an update") : client.Left();
  }
  (*watch)->NoteBegin();
  Engine* engine = nullptr;
  WeightsRequest request;
  if (grpc::Status status = ReadBegin(find, client.message.begin(), &engine, &request); !status.ok())
    return status;
  if (client.direct()) {
    request.port_token = RandomHex(kPortTokenBytes);
  } else {
    // Before a tensor has come that the model has, no call is held back, and the old weights stay.
    if (!client.Read()) return client.Left();
    if (!client.message.has_chunk() && !client.message.has_finish()) return Invalid(kGoesOn);
    if (client.message.has_chunk()) request.tensors.push_back(HeadOf(client.message.chunk()));
  }
  // When the client leaves while the update waits, the update does not begin, and the old weights stay.
  const CallerScope scope(caller);
  absl::StatusOr<std::unique_ptr<WeightUpdate>> begun = engine->BeginWeightUpdate(request);
  if (!begun.ok()) return EngineRefusal(begun.status(), *engine);
  OpenUpdate update(*std::move(begun));  // a return before Finish gives the update up
  (*watch)->SetUpdate([&update] { return update.Check(); });
  const absl::Cleanup forget = [&] { (*watch)->SetUpdate(nullptr); };
  if (client.direct()) {
    client.WritePorts(request.port_token, update.get()->ports());
    if (!client.Read()) return client.Left();
  }
  if (grpc::Status status = ReceiveChunks(*engine, &update, &client); !status.ok()) return status;
  const absl::StatusOr<WeightsChange> change = update.get()->Finish(Expected(client.message.finish()));
  if (!change.ok()) return EngineRefusal(change.status(), *engine);
  response->set_weights_version(change->version);
  response->set_seconds(absl::ToDoubleSeconds(MonotonicNow() - start));
  response->set_num_tensors(change->received.num_tensors);
  response->set_num_bytes(change->received.num_bytes);
  return grpc::Status::OK;
}

}  // namespace somnus
