#pragma once
// The Communicator of ranks on GPUs: small messages go through peer memory, large ones through NCCL, as
// collective_plan.h says. Stream ordered. A watchdog thread checks every 50 ms whether the group is whole.
// When it is not, the thread ends what the device has queued, so that a wait for the device returns, and
// status() says why.

#include <memory>

#include "kernels/peer_collectives.h"
#include "worker/comm/communicator.h"
#include "worker/comm/nccl_communicator.h"

namespace somnus {

// Of one rank. All ranks have the same parts.
struct DeviceGroupParts {
  int rank = 0;
  int world_size = 1;
  Device* device = nullptr;                // borrowed
  std::unique_ptr<Communicator> host;      // among ranks of one host; null when there are several
  std::unique_ptr<PeerCollectives> peers;  // connected; null: none. Needs `host`
  PeerLink link = PeerLink::kNvLink;       // the slowest between the ranks' devices
  std::unique_ptr<NcclCommunicator> nccl;  // ready; null: none
};

// At least one of peers and nccl. When the communicator is destroyed it waits for the other ranks to do the
// same, for two seconds at most; graphs that hold its collectives must be gone by then.
absl::StatusOr<std::unique_ptr<Communicator>> MakeDeviceCommunicator(DeviceGroupParts parts);

}  // namespace somnus
