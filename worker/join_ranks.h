#pragma once
// Connects a rank with the ranks of the same model: the group of ranks that divide the layers, and, in a
// pipeline, the ranks of the stages before and behind.
//
// Ranks of one host meet in shared memory, ranks of several hosts over TCP, GPUs of a stage as device_group.h
// says. A stage on one host has shared memory also where other stages are on other hosts.

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "proto/model.pb.h"
#include "worker/comm/communicator.h"
#include "worker/comm/group_options.h"
#include "worker/comm/tcp_socket.h"

namespace somnus {

// The ports of a rank, where other ranks connect (WorkerService.NewGroup); of no port, where no rank is on
// another host.
struct GroupPorts {
  TcpListener group;  // for the ranks of the stage
  TcpListener link;   // for the rank of the next stage
};

// Forms a group of ranks on GPUs.
using JoinDevices = std::function<absl::StatusOr<std::unique_ptr<Communicator>>(const GroupOptions&)>;

// Blocks until all ranks that this rank talks to are there. `options` has the settings that hold for all
// groups of the rank; `parallel` describes this group. `join_devices`: null for ranks on CPUs.
// FailedPrecondition: a port is missing; further errors as in JoinHostGroup.
absl::StatusOr<std::unique_ptr<Communicator>> JoinRanks(const v1::ParallelConfig& parallel,
                                                        const GroupOptions& options, GroupPorts ports,
                                                        const JoinDevices& join_devices);

}  // namespace somnus
