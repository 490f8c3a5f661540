#pragma once
// The simulated network, under the gRPC of tests/simulation/grpc.h.
//
// Messages of a call arrive in order, messages of different calls in any order. A lost packet is a late
// packet, as with TCP; some networks lose many. A cut holds back everything between a process and the rest
// until the end of the cut. The end of a process, and a reset, break the process's connections: calls under
// way end with UNAVAILABLE, at once or when a cut ends.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/simulation/grpc.h"
#include "tests/simulation/world.h"

namespace somnus::simulation {

// A client's connection to an address.
struct Connection {
  std::string address;
  int client = 0;  // processes
  int server = 0;
  bool connected = false;
  bool connecting = false;
  bool known = false;   // to the network
  int generation = 0;   // counts the client's dials
  int num_severed = 0;  // of the generations: over so many nothing passes any more
};

struct Listener {
  std::string address;
  int process = 0;
  grpc::Service* service = nullptr;
  bool open = true;
  int num_calls = 0;  // that are being served
};

// One direction of a call.
struct Pipe {
  std::deque<std::function<void()>> messages;
  absl::Duration last_arrival;
};

struct Call {
  uint64_t number = 0;
  std::string method;
  std::shared_ptr<Connection> connection;
  int generation = 0;                  // of the connection, when the call began
  std::shared_ptr<Listener> listener;  // null until the call has arrived
  absl::Duration deadline = absl::InfiniteDuration();
  bool waits = false;             // for a server that accepts the call
  absl::Duration cancel_latency;  // drawn with the call: calls are cancelled in an order that differs
  Pipe to_server, to_client;
  // The client's knowledge.
  bool accepted = false;
  bool over = false;
  grpc::Status status;
  std::deque<std::string> replies;
  std::function<void()> on_change;
  // The server's knowledge.
  std::deque<std::string> requests;
  bool half_closed = false;
  bool cancelled = false;
  bool served = false;  // the handler has returned
};

class Network {
 public:
  explicit Network(World* world);
  ~Network();
  // The network of the world that runs.
  static Network& current();

  std::shared_ptr<Listener> Listen(const std::string& address, grpc::Service* service);
  void Close(Listener* listener, absl::Duration deadline);
  // To be called for every process that may listen or call.
  void Watch(int process);

  // `waits`: a server that nobody reaches is tried until the deadline.
  std::shared_ptr<Call> Start(const std::shared_ptr<Connection>& connection, const std::string& method,
                              absl::Duration deadline, bool waits);
  void SendToServer(const std::shared_ptr<Call>& call, std::function<void()> arrives);
  void SendToClient(const std::shared_ptr<Call>& call, std::function<void()> arrives);
  // The client gives the call up.
  void End(const std::shared_ptr<Call>& call, const grpc::Status& status);
  bool AwaitConnected(const std::shared_ptr<Connection>& connection, absl::Duration deadline);

  // Nothing passes between `process` and all other processes for `duration`.
  void Cut(int process, absl::Duration duration);
  // Breaks every connection to the process' listener: calls of a connection end together.
  void Reset(int process);
  absl::Duration Latency();

  // A coordinator has replied to a worker whose group has the given epoch: the worker is a member from now
  // on, or is no member. In the latter case the worker was given up if a group of that coordinator had begun
  // with that worker; a worker that falls silent before that may come again.
  void NoteAdopted(int coordinator, int worker, int64_t epoch);
  void NoteUnknown(int coordinator, int worker, int64_t epoch);
  bool given_up(int worker) const { return given_up_.count(worker) > 0; }
  // The coordinator has ended, and the next coordinator may take workers that this coordinator had given up.
  void ForgetGivenUp() { given_up_.clear(); }

 private:
  void Send(const std::shared_ptr<Call>& call, Pipe* pipe, absl::Duration latency,
            std::function<void()> arrives);
  void Note(const std::shared_ptr<Connection>& connection);
  void Arrive(const std::shared_ptr<Call>& call, Pipe* pipe);
  void Accept(const std::shared_ptr<Call>& call);
  void Connect(const std::shared_ptr<Connection>& connection);
  void Learn(const std::shared_ptr<Call>& call, const grpc::Status& status);
  void AbandonCalls(int client);
  void Sever(const std::shared_ptr<Connection>& connection);
  bool IsSevered(const Connection& connection, int generation) const;
  std::vector<std::shared_ptr<Call>> SeveredCalls(const std::shared_ptr<Connection>& connection) const;
  void CancelAtServer(const std::shared_ptr<Call>& call);
  void Forget(const std::shared_ptr<Call>& call);
  absl::Duration CutUntil(const Connection& connection) const;

  World* const world_;
  const absl::Duration base_latency_;
  const double loss_probability_;
  uint64_t num_calls_ = 0;
  std::map<std::string, std::shared_ptr<Listener>> listeners_;
  std::map<uint64_t, std::shared_ptr<Call>> calls_;  // that have not ended on both sides
  std::vector<std::shared_ptr<Connection>> connections_;
  std::map<int, absl::Duration> cut_until_;
  std::map<std::pair<int, int>, int64_t> adopted_at_;  // epochs, by coordinator and worker
  std::set<int> given_up_;
};

}  // namespace somnus::simulation
