#pragma once
// Ranks on the CPUs of several hosts: a Communicator over TCP.
//
// Sockets of our own rather than a library such as Gloo: in Gloo's rings the order in which an element is
// summed depends on the number of ranks and on the element's place in the message. Here every element is
// summed in rank order, as in shared memory, so that a model's logits are bit for bit the same on a single
// host and on several hosts, for every batch.
//
// Every rank has two connections to every other rank: a connection for data, and a connection for notices (an
// abort, or the loss of a third rank), which also tells when a host cannot be reached any longer. Small
// messages go to all ranks, and each rank adds up all of a message. Of large messages among three ranks or
// more, each rank adds up a part, and sends the sum to the other ranks.
//
// Security. A process joins only with the group's secret: each side of a connection proves to know the secret
// without sending the secret (HMAC-SHA256 over numbers that both sides draw). Strangers that connect are
// dropped, and neither end nor delay the group. The ranks' later messages are neither encrypted nor signed:
// the network between the hosts must be trusted, as with NCCL.

#include <memory>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/comm/group_options.h"
#include "worker/comm/tcp_socket.h"

namespace somnus {

// Blocks until all ranks are there, and closes the listener, whose port is in rank_addresses[rank].
// InvalidArgument names the option; DeadlineExceeded says who is missing after connect_timeout; Unavailable:
// a rank cannot be reached, or went away while the group was forming; PermissionDenied: a different secret;
// Aborted: cancelled.
absl::StatusOr<std::unique_ptr<Communicator>> MakeTcpCommunicator(const GroupOptions& options,
                                                                  TcpListener listener);

}  // namespace somnus
