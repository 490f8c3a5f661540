#include "tests/simulation/network.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace somnus::simulation {
namespace {

Network* the_network = nullptr;

constexpr double kUsualLoss = 0.003;
constexpr double kHeavyLoss = 0.1;
constexpr absl::Duration kShortestRetransmission = absl::Milliseconds(5);
constexpr absl::Duration kLongestRetransmission = absl::Milliseconds(400);
constexpr absl::Duration kReconnectPause = absl::Milliseconds(100);

}  // namespace

Network::Network(World* world)
    : world_(world),
      base_latency_(world->random().Between(absl::Microseconds(20), absl::Microseconds(400))),
      loss_probability_(world->random().Chance(0.25) ? kHeavyLoss : kUsualLoss) {
  if (std::exchange(the_network, this) != nullptr) std::abort();
}

Network::~Network() { the_network = nullptr; }

Network& Network::current() { return *the_network; }

absl::Duration Network::Latency() {
  Random& random = world_->random();
  absl::Duration latency = base_latency_ + random.Between(absl::ZeroDuration(), 2 * base_latency_);
  if (random.Chance(loss_probability_))
    latency += random.Between(kShortestRetransmission, kLongestRetransmission);
  return latency;
}

std::shared_ptr<Listener> Network::Listen(const std::string& address, grpc::Service* service) {
  auto listener = std::make_shared<Listener>();
  listener->address = address;
  listener->process = world_->current_process();
  listener->service = service;
  listeners_[address] = listener;
  return listener;
}

void Network::Close(Listener* listener, absl::Duration deadline) {
  listener->open = false;
  while (listener->num_calls > 0 && world_->now() < deadline) world_->Block(listener, deadline);
  for (const auto& [number, call] : calls_) {
    if (call->listener.get() != listener || call->served) continue;
    CancelAtServer(call);
  }
  while (listener->num_calls > 0) world_->Block(listener);
}

void Network::Watch(int process) {
  world_->OnEnd(process, [this, process] {
    AbandonCalls(process);
    Reset(process);
  });
}

void Network::NoteAdopted(int coordinator, int worker, int64_t epoch) {
  adopted_at_[{coordinator, worker}] = epoch;
}

void Network::NoteUnknown(int coordinator, int worker, int64_t epoch) {
  const auto adopted = adopted_at_.find({coordinator, worker});
  if (adopted != adopted_at_.end() && epoch > adopted->second) given_up_.insert(worker);
}

// A server learns of a client's end as of a cancellation.
void Network::AbandonCalls(int client) {
  std::vector<std::shared_ptr<Call>> abandoned;
  for (const auto& [number, call] : calls_) {
    if (call->connection->client == client) abandoned.push_back(call);
  }
  for (const std::shared_ptr<Call>& call : abandoned) {
    SendToServer(call, [this, call] { CancelAtServer(call); });
    call->over = true;
    call->on_change = nullptr;
    Forget(call);
  }
}

void Network::Reset(int process) {
  for (const std::shared_ptr<Connection>& connection : connections_) {
    if (connection->server == process) Sever(connection);
  }
}

// The server knows at once. The client learns the end a moment later, of all calls together, and also of
// calls that the client has sent meanwhile.
void Network::Sever(const std::shared_ptr<Connection>& connection) {
  if (IsSevered(*connection, connection->generation)) return;
  connection->num_severed = connection->generation + 1;
  for (const std::shared_ptr<Call>& call : SeveredCalls(connection)) {
    CancelAtServer(call);
    if (!world_->alive(connection->server)) call->served = true;
  }
  const absl::Duration cut = std::max(CutUntil(*connection) - world_->now(), absl::ZeroDuration());
  world_->After(cut + Latency(), [this, connection] {
    ++connection->generation;
    connection->connected = false;
    world_->Wake(connection.get());
    for (const std::shared_ptr<Call>& call : SeveredCalls(connection)) {
      if (call->listener == nullptr) call->served = true;  // the message does not arrive any more
      Learn(call, grpc::Status(grpc::UNAVAILABLE, "Socket closed"));
      Forget(call);
    }
  });
}

bool Network::IsSevered(const Connection& connection, int generation) const {
  return generation < connection.num_severed;
}

std::vector<std::shared_ptr<Call>> Network::SeveredCalls(
    const std::shared_ptr<Connection>& connection) const {
  std::vector<std::shared_ptr<Call>> severed;
  for (const auto& [number, call] : calls_) {
    if (call->connection == connection && IsSevered(*connection, call->generation)) severed.push_back(call);
  }
  return severed;
}

void Network::CancelAtServer(const std::shared_ptr<Call>& call) {
  call->cancelled = true;
  world_->Wake(&call->requests);
}

void Network::Cut(int process, absl::Duration duration) {
  world_->Log(absl::StrCat(world_->name(process), " is cut off for ", absl::FormatDuration(duration)));
  cut_until_[process] = std::max(cut_until_[process], world_->now() + duration);
}

absl::Duration Network::CutUntil(const Connection& connection) const {
  absl::Duration until;
  for (const int process : {connection.client, connection.server}) {
    if (const auto it = cut_until_.find(process); it != cut_until_.end()) until = std::max(until, it->second);
  }
  return until;
}

std::shared_ptr<Call> Network::Start(const std::shared_ptr<Connection>& connection, const std::string& method,
                                     absl::Duration deadline, bool waits) {
  auto call = std::make_shared<Call>();
  call->number = ++num_calls_;
  call->method = method;
  call->connection = connection;
  call->generation = connection->generation;
  call->deadline = deadline;
  call->waits = waits;
  calls_[call->number] = call;
  call->cancel_latency = Latency();
  Note(connection);
  if (const auto it = listeners_.find(connection->address); it != listeners_.end())
    connection->server = it->second->process;
  SendToServer(call, [this, call] { Accept(call); });
  return call;
}

void Network::Accept(const std::shared_ptr<Call>& call) {
  const auto it = listeners_.find(call->connection->address);
  if (it == listeners_.end() || !it->second->open || !world_->alive(it->second->process)) {
    if (call->waits && !call->over)
      return world_->After(kReconnectPause,
                           [this, call] { SendToServer(call, [this, call] { Accept(call); }); });
    SendToClient(call, [this, call] {
      call->connection->connected = false;
      Learn(call, grpc::Status(grpc::UNAVAILABLE, "connection refused"));
    });
    call->served = true;
    return;
  }
  const std::shared_ptr<Listener> listener = it->second;
  call->listener = listener;
  call->connection->server = listener->process;
  call->connection->connected = true;
  ++listener->num_calls;
  SendToClient(call, [this, call] {
    call->accepted = true;
    if (call->on_change) call->on_change();
  });
  world_->Spawn(listener->process, [this, listener, call] {
    const grpc::Status status = listener->service->Serve(call);
    call->served = true;
    SendToClient(call, [this, call, status] { Learn(call, status); });
    --listener->num_calls;
    world_->Wake(listener.get());
    Forget(call);
  });
}

void Network::SendToServer(const std::shared_ptr<Call>& call, std::function<void()> arrives) {
  Send(call, &call->to_server, Latency(), std::move(arrives));
}

void Network::SendToClient(const std::shared_ptr<Call>& call, std::function<void()> arrives) {
  Send(call, &call->to_client, Latency(), std::move(arrives));
}

void Network::Note(const std::shared_ptr<Connection>& connection) {
  if (!std::exchange(connection->known, true)) connections_.push_back(connection);
}

void Network::Send(const std::shared_ptr<Call>& call, Pipe* pipe, absl::Duration latency,
                   std::function<void()> arrives) {
  pipe->messages.push_back(std::move(arrives));
  pipe->last_arrival = std::max(pipe->last_arrival, world_->now() + latency);
  world_->After(pipe->last_arrival - world_->now(), [this, call, pipe] { Arrive(call, pipe); });
}

void Network::Arrive(const std::shared_ptr<Call>& call, Pipe* pipe) {
  if (const absl::Duration until = CutUntil(*call->connection); until > world_->now()) {
    world_->After(until - world_->now() + base_latency_, [this, call, pipe] { Arrive(call, pipe); });
    return;
  }
  const std::function<void()> message = std::move(pipe->messages.front());
  pipe->messages.pop_front();
  if (!IsSevered(*call->connection, call->generation)) message();
}

// The client learns that the call is over.
void Network::Learn(const std::shared_ptr<Call>& call, const grpc::Status& status) {
  if (call->over) return;
  call->over = true;
  call->status = status;
  world_->Wake(call.get());
  if (call->on_change) call->on_change();
  Forget(call);
}

void Network::Forget(const std::shared_ptr<Call>& call) {
  if (call->over && call->served) calls_.erase(call->number);
}

void Network::End(const std::shared_ptr<Call>& call, const grpc::Status& status) {
  if (call->over) return;
  Send(call, &call->to_server, call->cancel_latency, [this, call] { CancelAtServer(call); });
  Learn(call, status);
}

bool Network::AwaitConnected(const std::shared_ptr<Connection>& connection, absl::Duration deadline) {
  Note(connection);
  if (!connection->connected && !std::exchange(connection->connecting, true)) Connect(connection);
  while (!connection->connected && world_->now() < deadline) world_->Block(connection.get(), deadline);
  return connection->connected;
}

void Network::Connect(const std::shared_ptr<Connection>& connection) {
  world_->After(2 * Latency(), [this, connection] {
    const auto it = listeners_.find(connection->address);
    const bool listens = it != listeners_.end() && it->second->open && world_->alive(it->second->process) &&
                         !world_->stopped(it->second->process);
    if (listens) connection->server = it->second->process;
    if (!listens || CutUntil(*connection) > world_->now()) {
      world_->After(kReconnectPause, [this, connection] { Connect(connection); });
      return;
    }
    connection->connecting = false;
    connection->connected = true;
    world_->Wake(connection.get());
  });
}

}  // namespace somnus::simulation
