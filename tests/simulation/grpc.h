#pragma once
// gRPC for the simulation, as far as the product uses it: the same names, over tests/simulation/network.h.
// Included by instead_of_grpc.h alone, which explains how this header takes the place of gRPC.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"

enum grpc_connectivity_state { GRPC_CHANNEL_IDLE, GRPC_CHANNEL_READY, GRPC_CHANNEL_TRANSIENT_FAILURE };
#define GRPC_ARG_ENABLE_HTTP_PROXY ""
#define GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL ""
#define GRPC_ARG_MIN_RECONNECT_BACKOFF_MS ""
#define GRPC_ARG_MAX_RECONNECT_BACKOFF_MS ""
#define GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS ""
#define GRPC_ARG_ALLOW_REUSEPORT ""
#define GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS ""

namespace google::protobuf {
class MessageLite;
}

namespace somnus::simulation {
struct Connection;
struct Call;
struct Listener;
}  // namespace somnus::simulation

namespace grpc {

enum StatusCode {
  OK = 0,
  CANCELLED = 1,
  UNKNOWN = 2,
  INVALID_ARGUMENT = 3,
  DEADLINE_EXCEEDED = 4,
  NOT_FOUND = 5,
  PERMISSION_DENIED = 7,
  RESOURCE_EXHAUSTED = 8,
  FAILED_PRECONDITION = 9,
  ABORTED = 10,
  UNIMPLEMENTED = 12,
  INTERNAL = 13,
  UNAVAILABLE = 14
};

class Status {
 public:
  Status() = default;
  Status(StatusCode code, const std::string& message, const std::string& details = "")
      : code_(code), message_(message), details_(details) {}
  static const Status OK, CANCELLED;

  bool ok() const { return code_ == StatusCode::OK; }
  StatusCode error_code() const { return code_; }
  const std::string& error_message() const { return message_; }
  const std::string& error_details() const { return details_; }

 private:
  StatusCode code_ = StatusCode::OK;
  std::string message_;
  std::string details_;  // a serialized google.rpc.Status
};

class ChannelCredentials {};
class ServerCredentials {};
namespace experimental {
class CertificateProviderInterface {};
}  // namespace experimental

class ClientContext {
 public:
  void set_deadline(std::chrono::system_clock::time_point deadline) {
    deadline_ = absl::FromChrono(deadline);
  }
  absl::Time deadline() const { return deadline_; }
  void set_wait_for_ready(bool waits) { wait_for_ready_ = waits; }
  bool wait_for_ready() const { return wait_for_ready_; }
  void TryCancel();
  bool cancelled() const { return cancelled_; }
  // TryCancel is passed on to `call`.
  void Follow(std::shared_ptr<somnus::simulation::Call> call) { call_ = std::move(call); }

 private:
  absl::Time deadline_ = absl::InfiniteFuture();
  bool wait_for_ready_ = false;
  bool cancelled_ = false;
  std::shared_ptr<somnus::simulation::Call> call_;
};

class ServerContext {
 public:
  explicit ServerContext(std::shared_ptr<somnus::simulation::Call> call) : call_(std::move(call)) {}
  bool IsCancelled() const;
  void TryCancel();

 private:
  const std::shared_ptr<somnus::simulation::Call> call_;
};

class ChannelArguments {
 public:
  void SetInt(const std::string&, int) {}
  void SetMaxReceiveMessageSize(int) {}
  void SetMaxSendMessageSize(int) {}
};

class Channel {
 public:
  explicit Channel(const std::string& address);
  ~Channel();
  bool WaitForConnected(std::chrono::system_clock::time_point deadline);
  grpc_connectivity_state GetState(bool try_to_connect);
  const std::shared_ptr<somnus::simulation::Connection>& connection() const { return connection_; }

 private:
  const std::shared_ptr<somnus::simulation::Connection> connection_;
};

std::shared_ptr<Channel> CreateCustomChannel(const std::string& address,
                                             const std::shared_ptr<ChannelCredentials>& credentials,
                                             const ChannelArguments& arguments);

// The base of the services in tests/simulation/services.h.
class Service {
 public:
  virtual ~Service() = default;
  virtual Status Serve(const std::shared_ptr<somnus::simulation::Call>& call) = 0;
};

class Server {
 public:
  explicit Server(std::shared_ptr<somnus::simulation::Listener> listener) : listener_(std::move(listener)) {}
  ~Server();
  void Shutdown(std::chrono::system_clock::time_point deadline);

 private:
  const std::shared_ptr<somnus::simulation::Listener> listener_;
};

class ServerBuilder {
 public:
  enum SyncServerOption { NUM_CQS, MIN_POLLERS, MAX_POLLERS };
  void AddListeningPort(const std::string& address, const std::shared_ptr<ServerCredentials>&,
                        int* port = nullptr) {
    address_ = address;
    if (port != nullptr) *port = 1;
  }
  void AddChannelArgument(const std::string&, int) {}
  void SetMaxReceiveMessageSize(int) {}
  void SetMaxSendMessageSize(int) {}
  void SetSyncServerOption(SyncServerOption, int) {}
  void RegisterService(Service* service) { service_ = service; }
  std::unique_ptr<Server> BuildAndStart();

 private:
  std::string address_;
  Service* service_ = nullptr;
};

// The bytes of a message, which are the same in every process: maps are in the order of keys.
std::string Serialize(const google::protobuf::MessageLite& message);
// Messages of a call, on the server and on the client. Thread safe.
void ServerSend(const std::shared_ptr<somnus::simulation::Call>& call, std::string message);
bool ServerReceive(const std::shared_ptr<somnus::simulation::Call>& call, std::string* message);
bool ClientReceive(const std::shared_ptr<somnus::simulation::Call>& call, std::string* message);
// Waits for the end of the call.
Status ClientFinish(const std::shared_ptr<somnus::simulation::Call>& call);
std::shared_ptr<somnus::simulation::Call> StartCall(const Channel& channel, const std::string& method,
                                                    ClientContext* context, std::string request);

template <typename W, typename R>
class ServerReaderWriter {
 public:
  explicit ServerReaderWriter(std::shared_ptr<somnus::simulation::Call> call) : call_(std::move(call)) {}
  bool Read(R* message) {
    std::string bytes;
    return ServerReceive(call_, &bytes) && message->ParseFromString(bytes);
  }
  bool Write(const W& message) {
    ServerSend(call_, Serialize(message));
    return true;
  }

 private:
  const std::shared_ptr<somnus::simulation::Call> call_;
};

template <typename R>
class ServerReader {
 public:
  explicit ServerReader(std::shared_ptr<somnus::simulation::Call> call) : call_(std::move(call)) {}
  bool Read(R* message) {
    std::string bytes;
    return ServerReceive(call_, &bytes) && message->ParseFromString(bytes);
  }

 private:
  const std::shared_ptr<somnus::simulation::Call> call_;
};

template <typename W>
class ServerWriter {
 public:
  explicit ServerWriter(std::shared_ptr<somnus::simulation::Call> call) : call_(std::move(call)) {}
  bool Write(const W& message) {
    ServerSend(call_, Serialize(message));
    return true;
  }

 private:
  const std::shared_ptr<somnus::simulation::Call> call_;
};

template <typename R>
class ClientReader {
 public:
  explicit ClientReader(std::shared_ptr<somnus::simulation::Call> call) : call_(std::move(call)) {}
  bool Read(R* message) {
    std::string bytes;
    return ClientReceive(call_, &bytes) && message->ParseFromString(bytes);
  }
  Status Finish() { return ClientFinish(call_); }

 private:
  const std::shared_ptr<somnus::simulation::Call> call_;
};

// Starts a call with a stream of requests.
std::shared_ptr<somnus::simulation::Call> StartCall(const Channel& channel, const std::string& method,
                                                    ClientContext* context);
// False: the call is over.
bool ClientWrite(const std::shared_ptr<somnus::simulation::Call>& call, std::string message);
void ClientWritesDone(const std::shared_ptr<somnus::simulation::Call>& call);

template <typename W>
class ClientWriter {
 public:
  ClientWriter(std::shared_ptr<somnus::simulation::Call> call, std::function<bool(const std::string&)> parse)
      : call_(std::move(call)), parse_(std::move(parse)) {}
  bool Write(const W& message) { return ClientWrite(call_, Serialize(message)); }
  void WritesDone() { ClientWritesDone(call_); }
  Status Finish() {
    std::string bytes;
    const bool replied = ClientReceive(call_, &bytes);
    const Status status = ClientFinish(call_);
    if (status.ok() && !(replied && parse_(bytes))) return Status(INTERNAL, "no response");
    return status;
  }

 private:
  const std::shared_ptr<somnus::simulation::Call> call_;
  const std::function<bool(const std::string&)> parse_;
};

class CompletionQueue {
 public:
  // Waits for the next operation to end. False once the queue is shut down and every operation has ended.
  bool Next(void** tag, bool* ok);
  void Shutdown();

  void Begin() { ++num_pending_; }
  // The operation that has begun ends after a moment, which differs from call to call.
  void End(void* tag, bool ok, uint64_t call);

 private:
  std::deque<std::pair<void*, bool>> ended_;
  int num_pending_ = 0;
  bool shutdown_ = false;
};

// The client's side of a stream, without the messages' types.
class ClientStream {
 public:
  ClientStream(const Channel& channel, const std::string& method, ClientContext* context,
               CompletionQueue* queue);
  ~ClientStream();
  ClientStream(const ClientStream&) = delete;
  void StartCall(void* tag);
  void WriteBytes(std::string message, void* tag);
  void WritesDone(void* tag);
  void Finish(Status* status, void* tag);

 protected:
  void ReadBytes(std::function<bool(const std::string&)> parse, void* tag);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

template <typename W, typename R>
class ClientAsyncReaderWriter : public ClientStream {
 public:
  using ClientStream::ClientStream;
  void Write(const W& message, void* tag) { WriteBytes(Serialize(message), tag); }
  void Read(R* message, void* tag) {
    ReadBytes([message](const std::string& bytes) { return message->ParseFromString(bytes); }, tag);
  }
};

// An encoded message.
class ByteBuffer {
 public:
  ByteBuffer() = default;
  explicit ByteBuffer(std::string bytes) : bytes_(std::move(bytes)) {}
  size_t Length() const { return bytes_.size(); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};
inline std::string Serialize(const ByteBuffer& message) { return message.bytes(); }

template <typename Message>
struct SerializationTraits {
  static Status Serialize(const Message& message, ByteBuffer* buffer, bool* own_buffer) {
    *buffer = ByteBuffer(grpc::Serialize(message));
    *own_buffer = true;
    return Status::OK;
  }
};

// `method`: "/package.Service/Method".
template <typename W, typename R>
class TemplatedGenericStub {
 public:
  explicit TemplatedGenericStub(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}
  std::unique_ptr<ClientAsyncReaderWriter<W, R>> PrepareCall(ClientContext* context,
                                                             const std::string& method,
                                                             CompletionQueue* queue) {
    return std::make_unique<ClientAsyncReaderWriter<W, R>>(*channel_, method.substr(method.rfind('/') + 1),
                                                           context, queue);
  }

 private:
  const std::shared_ptr<Channel> channel_;
};

template <typename Request, typename Response>
Status UnaryCall(const Channel& channel, const std::string& method, ClientContext* context,
                 const Request& request, Response* response) {
  const auto call = StartCall(channel, method, context, Serialize(request));
  std::string bytes;
  const bool replied = ClientReceive(call, &bytes);
  const Status status = ClientFinish(call);
  if (status.ok() && !(replied && response->ParseFromString(bytes))) return Status(INTERNAL, "no response");
  return status;
}

}  // namespace grpc
