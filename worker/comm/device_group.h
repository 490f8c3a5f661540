#pragma once
// How ranks on GPUs form a group: the ranks agree on the ways of communicating that every rank has.
//
// Ranks of a host meet in shared memory first, and exchange there the handles of each rank's peer memory, and
// the ways that each rank has. NCCL's group forms from the unique id that rank 0 made and the control plane
// carried. A way that a single rank lacks is used by no rank; ranks that share a device do without NCCL,
// which refuses a shared device.

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/peer_collectives.h"
#include "worker/comm/communicator.h"
#include "worker/comm/group_options.h"
#include "worker/comm/nccl_api.h"

namespace somnus {

using MakePeers = std::function<absl::StatusOr<std::unique_ptr<PeerCollectives>>(const PeerOptions&)>;

// Blocks until all ranks are there. `nccl`: the loaded library, or why there is none; the library and the
// device must outlive the communicator. FailedPrecondition says why no way is left; further errors as in
// MakeShmCommunicator.
absl::StatusOr<std::unique_ptr<Communicator>> JoinDeviceGroup(const GroupOptions& options, Device* device,
                                                              const MakePeers& make_peers,
                                                              absl::StatusOr<const NcclApi*> nccl);

}  // namespace somnus
