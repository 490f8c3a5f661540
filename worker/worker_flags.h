#pragma once
// The worker's command line: where it listens and registers, on which device, with which threads. A worker
// that a launcher started finds its place in the environment instead. How it runs a model comes with
// LoadModel.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "base/discovery.h"
#include "base/flags.h"
#include "proto/cluster_trust.h"

namespace somnus {

struct WorkerFlags {
  std::string coordinator;            // "host:port" or "unix:/path"
  std::string listen;                 // likewise; empty: chosen
  std::string host;                   // empty: the address of `listen`
  ClusterTrustOptions trust;          // by what the coordinator and it know each other
  std::optional<int32_t> spawned_by;  // the coordinator's process, when it started this worker itself
  std::optional<int32_t> rank;        // preferred
  std::string device = "auto";        // as ChooseDevice takes it
  std::optional<int32_t> device_index;
  int32_t threads = 0;  // 0: as the coordinator says
  std::optional<int32_t> first_cpu;
  std::string numa;  // as ParseNumaOption takes it; empty: as the coordinator says
  int32_t nice = 0;
  absl::Duration heartbeat_interval = absl::ZeroDuration();  // zero: what the coordinator asks for
  absl::Duration register_timeout = absl::Minutes(5);
  std::optional<absl::Duration> worker_grace;  // for a coordinator that is gone
  absl::Duration term_grace = absl::Seconds(30);
  std::string log_name;  // the model or replica of the worker
  std::string log_level = "info";
  int64_t log_queue_bytes = 1 << 20;
  absl::Duration liveness_timeout = absl::Minutes(1);  // zero: threads are not watched
  absl::Duration step_timeout = absl::Minutes(5);
  std::string health_listen;  // "host:port" or "unix:/path"; empty: nowhere
};

// The flags, their bounds and help. Parsing writes to `flags`, which must outlive the table.
FlagTable WorkerFlagTable(WorkerFlags* flags);

// Fills in what the command line left open and the environment tells. Returns what it took, and what it
// passed over, for the log. InvalidArgument names a variable, or --coordinator when that is known from
// nowhere.
absl::StatusOr<Discovery> FillFromEnvironment(const Environment& environment, WorkerFlags* flags);

}  // namespace somnus
