#include "worker/comm/host_group.h"

#include <utility>

#include "worker/comm/tcp_communicator.h"

namespace somnus {

absl::StatusOr<std::unique_ptr<Communicator>> JoinHostGroup(const HostGroupOptions& options,
                                                            TcpListener listener) {
  if (options.rank_addresses.empty()) {
    ShmCommunicatorOptions shm;
    shm.group_name = options.group_name;
    shm.rank = options.rank;
    shm.world_size = options.world_size;
    shm.spin = options.spin;
    shm.cancelled = options.cancelled;
    return MakeShmCommunicator(shm);
  }
  TcpCommunicatorOptions tcp;
  tcp.group_name = options.group_name;
  tcp.rank = options.rank;
  tcp.world_size = options.world_size;
  tcp.rank_addresses = options.rank_addresses;
  tcp.secret = options.secret;
  tcp.cancelled = options.cancelled;
  if (!options.spin) tcp.spin_time = absl::ZeroDuration();
  return MakeTcpCommunicator(tcp, std::move(listener));
}

}  // namespace somnus
