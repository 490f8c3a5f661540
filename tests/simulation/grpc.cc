#include "tests/simulation/grpc.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/time/clock.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/message_lite.h"
#include "tests/simulation/network.h"

namespace grpc {

using somnus::simulation::Call;
using somnus::simulation::Connection;
using somnus::simulation::Listener;
using somnus::simulation::Network;
using somnus::simulation::World;

namespace {

absl::Duration FromNow(absl::Time deadline) {
  return deadline == absl::InfiniteFuture() ? absl::InfiniteDuration()
                                            : World::current()->now() + (deadline - absl::Now());
}

// Waits until `done()` or the end of the call.
template <typename Done>
void AwaitCall(const std::shared_ptr<Call>& call, const Done& done) {
  while (!done() && !call->over) {
    if (!World::current()->Block(call.get(), call->deadline) && World::current()->now() >= call->deadline)
      Network::current().End(call, Status(DEADLINE_EXCEEDED, "Deadline Exceeded"));
  }
}

}  // namespace

std::string Serialize(const google::protobuf::MessageLite& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

const Status Status::OK, Status::CANCELLED(StatusCode::CANCELLED, "");

void ClientContext::TryCancel() {
  cancelled_ = true;
  if (call_ != nullptr) Network::current().End(call_, Status::CANCELLED);
}

bool ServerContext::IsCancelled() const {
  return call_->cancelled || World::current()->now() >= call_->deadline;
}

void ServerContext::TryCancel() {
  call_->cancelled = true;
  World::current()->Wake(&call_->requests);
}

Channel::Channel(const std::string& address) : connection_(std::make_shared<Connection>()) {
  connection_->address = address;
  connection_->client = World::current()->current_process();
}

Channel::~Channel() = default;

bool Channel::WaitForConnected(std::chrono::system_clock::time_point deadline) {
  return Network::current().AwaitConnected(connection_, FromNow(absl::FromChrono(deadline)));
}

grpc_connectivity_state Channel::GetState(bool) {
  return connection_->connected ? GRPC_CHANNEL_READY : GRPC_CHANNEL_TRANSIENT_FAILURE;
}

std::shared_ptr<Channel> CreateCustomChannel(const std::string& address,
                                             const std::shared_ptr<ChannelCredentials>&,
                                             const ChannelArguments&) {
  return std::make_shared<Channel>(address);
}

Server::~Server() { Network::current().Close(listener_.get(), World::current()->now()); }

void Server::Shutdown(std::chrono::system_clock::time_point deadline) {
  Network::current().Close(listener_.get(), FromNow(absl::FromChrono(deadline)));
}

std::unique_ptr<Server> ServerBuilder::BuildAndStart() {
  return std::make_unique<Server>(Network::current().Listen(address_, service_));
}

std::shared_ptr<Call> StartCall(const Channel& channel, const std::string& method, ClientContext* context) {
  const auto call = Network::current().Start(channel.connection(), method, FromNow(context->deadline()),
                                             context->wait_for_ready());
  if (context->cancelled()) Network::current().End(call, Status::CANCELLED);
  context->Follow(call);
  return call;
}

void ClientSend(const std::shared_ptr<Call>& call, std::string message) {
  World::current()->AddToTrace(message);
  Network::current().SendToServer(call, [call, message = std::move(message)] {
    call->requests.push_back(message);
    World::current()->Wake(&call->requests);
  });
}

std::shared_ptr<Call> StartCall(const Channel& channel, const std::string& method, ClientContext* context,
                                std::string request) {
  const auto call = StartCall(channel, method, context);
  ClientSend(call, std::move(request));
  return call;
}

bool ClientWrite(const std::shared_ptr<Call>& call, std::string message) {
  if (call->over) return false;
  ClientSend(call, std::move(message));
  return true;
}

void ClientWritesDone(const std::shared_ptr<Call>& call) {
  Network::current().SendToServer(call, [call] {
    call->half_closed = true;
    World::current()->Wake(&call->requests);
  });
}

bool ClientReceive(const std::shared_ptr<Call>& call, std::string* message) {
  AwaitCall(call, [&] { return !call->replies.empty(); });
  if (call->replies.empty()) return false;
  *message = std::move(call->replies.front());
  call->replies.pop_front();
  return true;
}

Status ClientFinish(const std::shared_ptr<Call>& call) {
  AwaitCall(call, [] { return false; });
  return call->status;
}

void ServerSend(const std::shared_ptr<Call>& call, std::string message) {
  // A status has the resident bytes of the host's process, which are not the world's.
  if (call->method != "GetStatus") World::current()->AddToTrace(message);
  Network::current().SendToClient(call, [call, message = std::move(message)] {
    if (call->over) return;
    call->replies.push_back(message);
    World::current()->Wake(call.get());
    if (call->on_change) call->on_change();
  });
}

bool ServerReceive(const std::shared_ptr<Call>& call, std::string* message) {
  while (call->requests.empty() && !call->half_closed && !call->cancelled)
    World::current()->Block(&call->requests);
  if (call->cancelled || call->requests.empty()) return false;
  *message = std::move(call->requests.front());
  call->requests.pop_front();
  return true;
}

bool CompletionQueue::Next(void** tag, bool* ok) {
  while (ended_.empty()) {
    if (shutdown_ && num_pending_ == 0) return false;
    World::current()->Block(this);
  }
  std::tie(*tag, *ok) = ended_.front();
  ended_.pop_front();
  --num_pending_;
  return true;
}

void CompletionQueue::Shutdown() {
  shutdown_ = true;
  World::current()->Wake(this);
}

void CompletionQueue::End(void* tag, bool ok, uint64_t call) {
  World::current()->After(absl::Microseconds(1) + absl::Nanoseconds(call), [this, tag, ok] {
    ended_.emplace_back(tag, ok);
    World::current()->Wake(this);
  });
}

// Shared with the call, whose changes may come while no operation is under way.
struct ClientStream::State {
  const Channel* channel;
  std::string method;
  ClientContext* context;
  CompletionQueue* queue;
  std::shared_ptr<Call> call;
  void *start = nullptr, *read = nullptr, *finish = nullptr;  // tags of the operations under way
  std::function<bool(const std::string&)> parse;
  Status* status = nullptr;

  void OnChange() {
    // The start ends when the beginning of the call is sent, not when the server has the beginning.
    const bool sent = call->connection->connected || call->accepted;
    if (start != nullptr && (sent || call->over))
      queue->End(std::exchange(start, nullptr), !call->over, call->number);
    if (read != nullptr && !call->replies.empty()) {
      const bool good = parse(call->replies.front());
      call->replies.pop_front();
      queue->End(std::exchange(read, nullptr), good, call->number);
    } else if (read != nullptr && call->over) {
      queue->End(std::exchange(read, nullptr), false, call->number);
    }
    if (finish != nullptr && call->over) {
      *status = call->status;
      queue->End(std::exchange(finish, nullptr), true, call->number);
    }
  }
};

ClientStream::ClientStream(const Channel& channel, const std::string& method, ClientContext* context,
                           CompletionQueue* queue)
    : state_(std::make_shared<State>()) {
  state_->channel = &channel;
  state_->method = method;
  state_->context = context;
  state_->queue = queue;
}

ClientStream::~ClientStream() {
  if (state_->call != nullptr) state_->call->on_change = nullptr;
}

void ClientStream::StartCall(void* tag) {
  state_->queue->Begin();
  state_->start = tag;
  state_->call = grpc::StartCall(*state_->channel, state_->method, state_->context);
  state_->call->on_change = [state = state_] { state->OnChange(); };
  state_->OnChange();
}

void ClientStream::WriteBytes(std::string message, void* tag) {
  state_->queue->Begin();
  const bool over = state_->call->over;
  if (!over) ClientSend(state_->call, std::move(message));
  state_->queue->End(tag, !over, state_->call->number);
}

void ClientStream::WritesDone(void* tag) {
  state_->queue->Begin();
  ClientWritesDone(state_->call);
  state_->queue->End(tag, !state_->call->over, state_->call->number);
}

void ClientStream::ReadBytes(std::function<bool(const std::string&)> parse, void* tag) {
  state_->queue->Begin();
  state_->read = tag;
  state_->parse = std::move(parse);
  state_->OnChange();
}

void ClientStream::Finish(Status* status, void* tag) {
  state_->queue->Begin();
  state_->finish = tag;
  state_->status = status;
  state_->OnChange();
}

}  // namespace grpc
