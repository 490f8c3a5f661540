#pragma once
// Which place in a cluster the environment gives this process: where the coordinator is, how many workers
// there are, which of them this one is.
//
// Launchers say it in variables of their own. For each field the first of these that has it counts:
//   1. our own: SOMNUS_COORDINATOR, SOMNUS_WORLD_SIZE, SOMNUS_RANK, SOMNUS_DEVICE_INDEX, SOMNUS_HOST
//   2. Slurm: SLURM_JOB_NODELIST and SLURM_JOB_ID, SLURM_NTASKS, SLURM_PROCID, SLURM_LOCALID
//   3. LeaderWorkerSet: LWS_LEADER_ADDRESS, LWS_GROUP_SIZE, LWS_WORKER_INDEX
//   4. torchrun: MASTER_ADDR and MASTER_PORT, WORLD_SIZE, RANK, LOCAL_RANK
//   5. MPI: OMPI_COMM_WORLD_*, PMI_*, PMIX_RANK, MPI_LOCALRANKID
// Flags go before all of them; that is their readers' to see to.
//
// A malformed variable of ours is an error, because somebody wrote it for us. A launcher's is passed over, so
// that a later source can serve, and `passed_over` says why. What is needed and found nowhere is an error of
// the process that needs it. Pure functions of the environment that they are given.

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

// A value, and the variable that it comes from, for the log.
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
  // Where the coordinator listens so that workers reach it there: the host where that is a numeric address,
  // else all addresses ("0.0.0.0"), because a host's own name often stands for its loopback address.
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

// The port of workers' registrations where nothing says another one.
inline constexpr int32_t kClusterPort = 50052;

// InvalidArgument names a malformed variable of ours.
absl::StatusOr<Discovery> Discover(const Environment& environment);

// Returns what was found and what was passed over, for one line of the log: "coordinator n0:20005 from
// SLURM_JOB_NODELIST, rank 1 from SLURM_PROCID". Empty when there is neither.
std::string DescribeDiscovery(const Discovery& discovery);

// Reads "host:port", "[v6]:port" or "unix:/path". InvalidArgument continues a sentence that starts with the
// text.
absl::StatusOr<CoordinatorAddress> ParseCoordinatorAddress(const std::string& text);

}  // namespace somnus
