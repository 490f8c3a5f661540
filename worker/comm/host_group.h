#pragma once
// How ranks on CPUs form a group: in shared memory on one host, over TCP on several. The coordinator decides
// which, by giving the ranks addresses or none.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/comm/communicator.h"
#include "worker/comm/tcp_socket.h"

namespace somnus {

struct HostGroupOptions {
  std::string group_name;  // as ShmCommunicatorOptions
  int rank = 0;
  int world_size = 1;
  std::vector<std::string> rank_addresses;  // as TcpCommunicatorOptions; empty: all ranks are on this host
  std::string secret;                       // likewise
  bool spin = true;                         // wait actively for a moment; off when threads outnumber CPUs
  std::function<bool()> cancelled;          // as ShmCommunicatorOptions
};

// Blocks until all ranks are there. `listener`: of this rank's address; not used without addresses. Errors
// are those of MakeShmCommunicator and MakeTcpCommunicator.
absl::StatusOr<std::unique_ptr<Communicator>> JoinHostGroup(const HostGroupOptions& options,
                                                            TcpListener listener);

}  // namespace somnus
