#pragma once
// Ranks on the CPUs of several hosts: a Communicator over TCP.
//
// Sockets of our own rather than a library such as Gloo: in Gloo's rings the order in which an element is
// summed depends on the number of ranks and on where in the message it stands. Here every element is summed
// in rank order, as in shared memory, so that a model's logits are bit for bit the same on one host and on
// several, whatever the batch.
//
// Every rank has two connections to every other: one for data, one for notices (an abort, or the loss of a
// third rank), which also tells when a host cannot be reached any longer. Small messages go to all ranks, and
// each rank adds them up. Of large messages among three ranks or more, each rank adds up one part, and sends
// the result to the others.
//
// Security. A process joins only with the group's secret, which it proves without sending it (HMAC-SHA256
// over numbers that both sides draw), and a rank proves it to the others alike. Strangers that connect are
// dropped; they neither end nor delay the group. What the ranks send afterwards is neither encrypted nor
// signed: the network between the hosts must be trusted, as with NCCL.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/comm/communicator.h"
#include "worker/comm/tcp_socket.h"

namespace somnus {

struct TcpCommunicatorOptions {
  std::string group_name;  // same on all ranks; [A-Za-z0-9_-]{1,64}
  int rank = 0;
  int world_size = 1;
  std::vector<std::string>
      rank_addresses;              // of every rank's listener, in rank order: "host:port" or "[v6]:port"
  std::string secret;              // same on all ranks and random, at least 16 bytes
  int64_t buffer_bytes = 4 << 20;  // for what arrives; larger sums go in pieces
  absl::Duration connect_timeout = absl::Seconds(30);
  std::function<bool()> cancelled;  // as ShmCommunicatorOptions
  absl::Duration collective_timeout = absl::Seconds(300);
  // A host that answers nothing for that long, to its kernel's probes, is lost. At least 2 s.
  absl::Duration unreachable_timeout = absl::Seconds(4);
  absl::Duration spin_time = absl::Microseconds(50);  // before blocking; zero when ranks outnumber CPUs
};

// Blocks until all ranks are there, and closes the listener, whose port is in rank_addresses[rank].
// InvalidArgument names the option; DeadlineExceeded says who is missing after connect_timeout; Unavailable:
// a rank cannot be reached, or went away while the group was forming; PermissionDenied: another secret;
// Aborted: cancelled.
absl::StatusOr<std::unique_ptr<Communicator>> MakeTcpCommunicator(const TcpCommunicatorOptions& options,
                                                                  TcpListener listener);

}  // namespace somnus
