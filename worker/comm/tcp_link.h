#pragma once
// A link between the stages of a pipeline over TCP. Connections, proofs of the secret and notices of losses
// are those of tcp_communicator.h; data go one way.

#include <memory>

#include "absl/status/statusor.h"
#include "worker/comm/group_options.h"
#include "worker/comm/stage_link.h"
#include "worker/comm/tcp_socket.h"

namespace somnus {

// `options`: of a group of two ranks. Blocks until both ends are there, and closes the listener, which the
// sender alone needs: of the port in rank_addresses[StageLink::kSender]. Errors as in MakeTcpCommunicator.
absl::StatusOr<std::unique_ptr<StageLink>> MakeTcpLink(const GroupOptions& options, TcpListener listener);

}  // namespace somnus
