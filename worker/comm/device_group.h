#pragma once
// How ranks on GPUs form a group: they agree on the ways of communicating that all of them have.
//
// Ranks of one host meet in shared memory first; there they exchange the handles of their peer memory, and
// what each of them can do. NCCL's group forms from the unique id that rank 0 made and the control plane
// carried. A way that one rank lacks is used by none; ranks that share a device do without NCCL, which
// refuses that.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/peer_collectives.h"
#include "worker/comm/communicator.h"
#include "worker/comm/nccl_api.h"

namespace somnus {

struct DeviceGroupOptions {
  std::string group_name;  // as ShmCommunicatorOptions
  int rank = 0;
  int world_size = 1;
  std::vector<std::string> rank_hosts;  // empty: all ranks are on this one
  std::string nccl_unique_id;           // empty: there is none
  void* stream = nullptr;               // cudaStream_t that collectives are queued on
  int64_t peer_buffer_bytes = 2 << 20;
  // Sums are taken in rank order, whatever the size. NCCL, whose order depends on the size, is then left out,
  // and all ranks must be on one host.
  bool batch_invariant = false;
  absl::Duration connect_timeout = absl::Seconds(120);
  std::function<bool()> cancelled;  // as ShmCommunicatorOptions
  absl::Duration collective_timeout = absl::Seconds(300);
};

using MakePeers = std::function<absl::StatusOr<std::unique_ptr<PeerCollectives>>(const PeerOptions&)>;

// Blocks until all ranks are there. `nccl`: the loaded library, or why there is none; it and the device must
// outlive the communicator. FailedPrecondition says why no way is left; other errors are those of
// MakeShmCommunicator.
absl::StatusOr<std::unique_ptr<Communicator>> JoinDeviceGroup(const DeviceGroupOptions& options,
                                                              Device* device, const MakePeers& make_peers,
                                                              absl::StatusOr<const NcclApi*> nccl);

}  // namespace somnus
