#pragma once
// How ranks on CPUs form a group: in shared memory on a single host, over TCP on several hosts. The
// coordinator decides between the two, by giving the ranks addresses or none.

#include <memory>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/comm/group_options.h"
#include "worker/comm/stage_link.h"
#include "worker/comm/tcp_socket.h"

namespace somnus {

// Blocks until all ranks are there. `listener`: of this rank's address; not used without addresses. Errors as
// in MakeShmCommunicator and MakeTcpCommunicator.
absl::StatusOr<std::unique_ptr<Communicator>> JoinHostGroup(const GroupOptions& options,
                                                            TcpListener listener);

// The same for a link between two stages (stage_link.h); the sender alone needs the listener.
absl::StatusOr<std::unique_ptr<StageLink>> JoinHostLink(const GroupOptions& options, TcpListener listener);

}  // namespace somnus
