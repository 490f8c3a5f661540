#include "coordinator/api/update_weights_call.h"

#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "base/monotonic.h"
#include "base/random_hex.h"
#include "coordinator/api/control_fields.h"
#include "coordinator/api/grpc_call.h"

namespace somnus {
namespace {

constexpr size_t kPortTokenBytes = 32;

grpc::Status Invalid(const char* message) { return {grpc::StatusCode::INVALID_ARGUMENT, message}; }

// Cancels a call whose client is silent for too long while the call waits for it.
class SilenceWatch {
 public:
  SilenceWatch(grpc::ServerContext* context, absl::Duration most)
      : context_(context), most_(most), thread_([this] { Run(); }) {}
  ~SilenceWatch() {
    stop_.Stop();
    thread_.join();
  }
  SilenceWatch(const SilenceWatch&) = delete;

  // The call waits for the client from now on, or does not.
  void SetWaits(bool waits) {
    absl::MutexLock lock(&mu_);
    silent_since_ = waits ? MonotonicNow() : absl::InfiniteDuration();
  }

 private:
  void Run() {
    while (!stop_.WaitFor(most_ / 10)) {
      absl::MutexLock lock(&mu_);
      if (MonotonicNow() - silent_since_ > most_) context_->TryCancel();
    }
  }

  grpc::ServerContext* const context_;
  const absl::Duration most_;
  absl::Mutex mu_;
  MonotonicTime silent_since_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();
  StopSignal stop_;
  std::thread thread_;
};

using ReadMessage = std::function<bool()>;

// Sends all chunks on to the engine, until `message` is the last one.
grpc::Status ReceiveChunks(const ReadMessage& read, const Engine& engine, bool direct, WeightUpdate* update,
                           v1::UpdateWeightsRequest* message) {
  while (read()) {
    if (message->has_finish()) return CheckKnownFields(message->finish());
    if (message->has_progress() && direct) continue;
    if (!message->has_chunk()) return Invalid("message: an update goes on with chunk or finish");
    if (grpc::Status status = CheckKnownFields(message->chunk()); !status.ok()) return status;
    if (absl::Status sent = update->Send(std::move(*message->mutable_chunk())); !sent.ok())
      return EngineRefusal(sent, engine);
  }
  return {grpc::StatusCode::CANCELLED, "the client left before it had finished the update"};
}

std::optional<ReceivedWeights> Expected(const v1::UpdateWeightsRequest::Finish& finish) {
  if (!finish.has_received()) return std::nullopt;
  return ReceivedWeights{finish.received().num_tensors(), finish.received().num_bytes(),
                         finish.received().checksum()};
}

}  // namespace

grpc::Status ReceiveWeights(const FindEngine& find, grpc::ServerContext* context,
                            const UpdateMessages& messages, v1::UpdateWeightsResponse* response,
                            absl::Duration max_silence) {
  const MonotonicTime start = MonotonicNow();
  const bool direct = messages.write_ports != nullptr;
  SilenceWatch watch(context, max_silence);
  v1::UpdateWeightsRequest message;
  const ReadMessage read = [&] {
    watch.SetWaits(true);
    const bool got = messages.read(&message);
    watch.SetWaits(false);
    return got;
  };
  if (!read() || !message.has_begin()) return Invalid("begin: it is the first message of an update");
  Engine* engine = nullptr;
  if (grpc::Status status = find(message.begin().model(), &engine); !status.ok()) return status;
  if (grpc::Status status = CheckFields(message.begin()); !status.ok()) return status;
  WeightsRequest request;
  if (grpc::Status status = ReadWeightsFields(message.begin(), &request); !status.ok()) return status;
  if (direct) request.port_token = RandomHex(kPortTokenBytes);
  // A client that leaves while its update waits for open requests does not take the weights with it.
  request.abandoned = [context] { return context->IsCancelled(); };
  absl::StatusOr<std::unique_ptr<WeightUpdate>> update = engine->BeginWeightUpdate(request);
  if (!update.ok()) return EngineRefusal(update.status(), *engine);
  // Whatever returns before Finish gives the update up.
  if (direct) {
    v1::DirectUpdateWeightsResponse::Ports ports;
    ports.set_token(request.port_token);
    for (v1::UpdatePort& port : (*update)->ports()) *ports.add_ports() = std::move(port);
    messages.write_ports(ports);
  }
  if (grpc::Status status = ReceiveChunks(read, *engine, direct, update->get(), &message); !status.ok())
    return status;
  const absl::StatusOr<WeightsChange> change = (*update)->Finish(Expected(message.finish()));
  if (!change.ok()) return EngineRefusal(change.status(), *engine);
  response->set_weights_version(change->version);
  response->set_seconds(absl::ToDoubleSeconds(MonotonicNow() - start));
  response->set_num_tensors(change->received.num_tensors);
  response->set_num_bytes(change->received.num_bytes);
  return grpc::Status::OK;
}

}  // namespace somnus
