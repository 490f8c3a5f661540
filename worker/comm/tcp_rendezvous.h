#pragma once
// How the ranks of a group on several hosts connect, each with every other one: a rank connects to all lower
// ranks and is connected to by all higher ones, twice (TcpChannel). tcp_handshake.h says who may.

#include <vector>

#include "absl/status/statusor.h"
#include "worker/comm/tcp_communicator.h"

namespace somnus {

// The connections to one rank; none (fd -1) to this rank itself.
struct TcpPeer {
  UniqueFd data, notices;
};

// By rank. The other ranks may still be connecting to each other when it returns. `options` have been
// checked; `limit` stands for those of them that are about time; errors as MakeTcpCommunicator.
absl::StatusOr<std::vector<TcpPeer>> MeetOverTcp(const GroupOptions& options, TcpListener listener,
                                                 const WaitLimit& limit);

}  // namespace somnus
