#include "worker/comm/host_group.h"

#include <utility>

#include "worker/comm/tcp_communicator.h"
#include "worker/comm/tcp_link.h"

namespace somnus {

absl::StatusOr<std::unique_ptr<Communicator>> JoinHostGroup(const GroupOptions& options,
                                                            TcpListener listener) {
  if (options.rank_addresses.empty()) return MakeShmCommunicator(options);
  return MakeTcpCommunicator(options, std::move(listener));
}

absl::StatusOr<std::unique_ptr<StageLink>> JoinHostLink(const GroupOptions& options, TcpListener listener) {
  if (options.rank_addresses.empty()) return MakeShmLink(options);
  return MakeTcpLink(options, std::move(listener));
}

}  // namespace somnus
