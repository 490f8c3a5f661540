#pragma once
// Which weights the ranks of a group have, on every rank alike; residency.h says which memory is resident.
// Values; not thread safe.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "coordinator/residency/held_adapter.h"
#include "coordinator/residency/residency.h"
#include "proto/weights.pb.h"

namespace somnus {

struct Weights {
  int64_t version = 1;      // of the last weights that were whole; at least 1
  std::string path;         // of the checkpoint that was read last, as the server was told the path
  std::string fingerprint;  // of the checkpoint's files; empty: not known
  std::string update_id;    // of the update that brought the weights; empty: a checkpoint did
  // Of stale weights: something has begun to write over the weights, so that a wake-up cannot bring the old
  // weights any more.
  bool overwritten = false;

  // A wake-up, or a worker that takes the place of a lost worker, can read the weights.
  bool readable() const { return update_id.empty() && !overwritten; }
  // The path, or "update " and the id.
  std::string source() const { return update_id.empty() ? path : absl::StrCat("update ", update_id); }
  // The files of the weights, as ranks that have the weights name the files; empty: not known.
  std::string files() const { return update_id.empty() ? fingerprint : source(); }

  bool operator==(const Weights&) const = default;
};

// The error of a change of the weights while the weights sleep.
inline constexpr char kWeightsSleep[] =
    "the weights sleep; wake them up first (somnus wake-up --no-load-weights)";
// Why a sleep that no operator has asked for has not come.
inline constexpr char kSparesOnlyCopy[] =
    "the weights came from an update, and the workers have the only copy of them";

// The residency and the weights of a group's ranks.
struct Held {
  // Implicit: where the weights are those of the beginning, only the residency matters.
  Held(Residency residency_in = {}, Weights weights_in = {},  // NOLINT(google-explicit-constructor)
       int32_t num_mapped_blocks_in = 0)
      : residency(std::move(residency_in)),
        weights(std::move(weights_in)),
        num_mapped_blocks(num_mapped_blocks_in) {}

  Residency residency;
  Weights weights;
  int32_t num_mapped_blocks = 0;  // of the KV cache, while the cache is resident; 0: all
  std::vector<HeldAdapter> adapters;
  // Of a recovery: why it has dropped adapters, by their ids.
  std::map<uint64_t, absl::Status> dropped_adapters;
};

// Of a change of weights: the error of a rank, or of a replica, that has refused the change before anything
// was done (proto/worker.proto).
inline bool IsRefusal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status);
}

// A digest of the weights that a rank got in an update; ranks that got the same have the same digest
// (proto/weights.proto).
struct ReceivedWeights {
  int64_t num_tensors = 0;
  int64_t num_bytes = 0;
  uint64_t checksum = 0;

  bool operator==(const ReceivedWeights&) const = default;
};

// How a change of weights has ended on the ranks.
struct WeightsOutcome {
  absl::Status status;
  bool untouched = false;             // of an error: every rank has the weights that the rank had before
  std::string fingerprint;            // of the checkpoint that was read
  ReceivedWeights received;           // of an update that is finished
  std::vector<v1::UpdatePort> ports;  // of a direct update that has begun: the ports of every rank; else none
};

}  // namespace somnus
