#pragma once
// Connects a rank with the ranks of the same model: the group of ranks that divide the layers, and, in a
// pipeline, the ranks of the stages before and behind.
//
// Ranks of one host meet in shared memory, ranks of several hosts over TCP; GPUs go on from there as
// device_group.h and device_link.h say. A stage on one host has shared memory also where other stages are on
// other hosts.

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "proto/model.pb.h"
#include "worker/comm/communicator.h"
#include "worker/comm/group_options.h"
#include "worker/comm/stage_link.h"
#include "worker/comm/tcp_socket.h"

namespace somnus {

// The ports of a rank, where other ranks connect (WorkerService.NewGroup); of no port, where no rank is on
// another host.
struct GroupPorts {
  TcpListener group;  // for the ranks of the stage
  TcpListener link;   // for the rank of the next stage
};

// How ranks on GPUs connect.
struct JoinDevices {
  // Forms the group of a stage. Null: the ranks are on CPUs.
  std::function<absl::StatusOr<std::unique_ptr<Communicator>>(const GroupOptions&)> stage;
  // Returns a link between the GPUs, or the given link through memory of the host. Null: the given link.
  std::function<absl::StatusOr<std::unique_ptr<StageLink>>(const GroupOptions&, std::unique_ptr<StageLink>)>
      link;
};

// Blocks until all ranks that this rank talks to are there. `options` has the settings that hold for all
// groups of the rank; `parallel` describes this group. FailedPrecondition: a port is missing; further errors
// as in JoinHostGroup.
absl::StatusOr<std::unique_ptr<Communicator>> JoinRanks(const v1::ParallelConfig& parallel,
                                                        const GroupOptions& options, GroupPorts ports,
                                                        const JoinDevices& devices);

}  // namespace somnus
