#pragma once
// Which place in a cluster the environment gives this process: where the coordinator is, how many workers
// there are, and which worker this process is.
//
// Each launcher has variables of its own. For each field the first source in this list that has the field
// counts:
//   1. our own: SOMNUS_COORDINATOR, SOMNUS_WORLD_SIZE, SOMNUS_RANK, SOMNUS_DEVICE_INDEX, SOMNUS_HOST
//   2. Slurm: SLURM_JOB_NODELIST and SLURM_JOB_ID, SLURM_NTASKS, SLURM_PROCID, SLURM_LOCALID
//   3. LeaderWorkerSet: LWS_LEADER_ADDRESS, LWS_GROUP_SIZE, LWS_WORKER_INDEX
//   4. torchrun: MASTER_ADDR and MASTER_PORT, WORLD_SIZE, RANK, LOCAL_RANK
//   5. MPI: OMPI_COMM_WORLD_*, PMI_*, PMIX_RANK, MPI_LOCALRANKID Flags go before all sources; the readers of
//      the flags see to that.
//
// A malformed variable of our own is an error, because somebody wrote the variable for Somnus. A malformed
// variable of a launcher is passed over, so that a later source can serve, and `passed_over` says why. If a
// needed field is found nowhere, the process that needs the field reports an error. Pure functions of the
// environment given.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace somnus {

using Environment = std::map<std::string, std::string>;

// A copy of the process's own variables.
Environment ProcessEnvironment();

// A value and its variable, for the log.
template <typename T>
struct Found {
  T value;
  std::string variable;
};

// Where workers register.
struct CoordinatorAddress {
  std::string host;  // without brackets; or "unix:/path", which only SOMNUS_COORDINATOR says
  int32_t port = 0;  // 0 for a Unix socket

  // "host:port", "[v6]:port" or "unix:/path".
  std::string Text() const;
  // Where the coordinator listens so that workers can reach the coordinator: the host where that is a numeric
  // address, else all addresses ("0.0.0.0"), because a host's own name often stands for the loopback address.
  std::string ListenHost() const;
};

struct Discovery {
  std::optional<Found<CoordinatorAddress>> coordinator;
  std::optional<Found<int32_t>> world_size;    // number of workers
  std::optional<Found<int32_t>> rank;          // of this worker
  std::optional<Found<int32_t>> device_index;  // of this worker's GPU on its host
  std::optional<Found<std::string>> host;      // under which the coordinator reaches this worker
  std::vector<std::string> passed_over;        // "RANK: 'x' is not a whole number from 0 to 1023"
};

// The port of workers' registrations unless a different port is given.
inline constexpr int32_t kClusterPort = 50052;

// InvalidArgument names a malformed variable of ours.
absl::StatusOr<Discovery> Discover(const Environment& environment);

// Returns what was found and what was passed over, for one line of the log: "coordinator n0:20005 from
// SLURM_JOB_NODELIST, rank 1 from SLURM_PROCID". Empty when nothing was found or passed over.
std::string DescribeDiscovery(const Discovery& discovery);

// Reads "host:port", "[v6]:port" or "unix:/path". InvalidArgument continues a sentence that starts with the
// text.
absl::StatusOr<CoordinatorAddress> ParseCoordinatorAddress(const std::string& text);

}  // namespace somnus
