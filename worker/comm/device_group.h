#pragma once
// How ranks on GPUs form a group: they agree on the ways of communicating that all of them have.
//
// Ranks of one host meet in shared memory first; there they exchange the handles of their peer memory, and
// what each of them can do. NCCL's group forms from the unique id that rank 0 made and the control plane
// carried. A way that one rank lacks is used by none; ranks that share a device do without NCCL, which
// refuses that.

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/peer_collectives.h"
#include "worker/comm/communicator.h"
#include "worker/comm/group_options.h"
#include "worker/comm/nccl_api.h"

namespace somnus {

using MakePeers = std::function<absl::StatusOr<std::unique_ptr<PeerCollectives>>(const PeerOptions&)>;

// Blocks until all ranks are there. `nccl`: the loaded library, or why there is none; it and the device must
// outlive the communicator. FailedPrecondition says why no way is left; other errors are those of
// MakeShmCommunicator.
absl::StatusOr<std::unique_ptr<Communicator>> JoinDeviceGroup(const GroupOptions& options, Device* device,
                                                              const MakePeers& make_peers,
                                                              absl::StatusOr<const NcclApi*> nccl);

}  // namespace somnus
