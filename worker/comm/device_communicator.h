#pragma once
// The Communicator of ranks on GPUs: small messages go through peer memory, large messages through NCCL, as
// collective_plan.h says. Stream ordered. A watchdog thread checks every 50 ms whether the group is whole.
// When the group is not, the thread ends all work that the device has queued, so that a wait for the device
// returns, and status() says why.

#include <memory>

#include "kernels/peer_collectives.h"
#include "worker/comm/communicator.h"
#include "worker/comm/nccl_communicator.h"

namespace somnus {

// The parts of a rank. All ranks have the same parts.
struct DeviceGroupParts {
  int rank = 0;
  int world_size = 1;
  Device* device = nullptr;                // borrowed
  std::unique_ptr<Communicator> host;      // among ranks of one host; null when there are several
  std::unique_ptr<PeerCollectives> peers;  // connected; null: none. Needs `host`
  PeerLink link = PeerLink::kNvLink;       // the slowest between the ranks' devices
  std::unique_ptr<NcclCommunicator> nccl;  // ready; null: none
};

// `parts` has peers, nccl or both. The communicator's destructor waits for the other ranks to do the same,
// for two seconds at most; graphs that hold the communicator's collectives must be gone by then.
absl::StatusOr<std::unique_ptr<Communicator>> MakeDeviceCommunicator(DeviceGroupParts parts);

}  // namespace somnus
