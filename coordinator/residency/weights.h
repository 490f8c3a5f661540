#pragma once
// Which weights the ranks of a group have, on every rank alike, beside what of their memory is resident
// (residency.h). Values; not thread safe.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "coordinator/residency/residency.h"
#include "proto/weights.pb.h"

namespace somnus {

struct Weights {
  int64_t version = 1;      // of the last ones that were whole; at least 1
  std::string path;         // of the checkpoint that was read last, as the server was told it
  std::string fingerprint;  // of its files; empty: not known
  std::string update_id;    // of the update that they came from; empty: they came from the checkpoint
  // Of stale weights: something has begun to write over them, so that a wake-up cannot bring them any more.
  bool overwritten = false;

  // A wake-up, or a worker that takes a lost one's place, can read them.
  bool readable() const { return update_id.empty() && !overwritten; }
  // The path, or "update " and the id.
  std::string source() const { return update_id.empty() ? path : absl::StrCat("update ", update_id); }
  // What ranks that have them say of the files that they came from; empty: not known.
  std::string files() const { return update_id.empty() ? fingerprint : source(); }

  bool operator==(const Weights&) const = default;
};

// Why a sleep that was nobody's word has not come.
inline constexpr char kSparesOnlyCopy[] =
    "the weights came from an update, and the workers have the only copy of them";

// What the ranks of a group hold.
struct Held {
  // Implicit: where the weights are those of the beginning, only the residency matters.
  Held(Residency residency_in = {}, Weights weights_in = {},  // NOLINT(google-explicit-constructor)
       int32_t num_mapped_blocks_in = 0)
      : residency(std::move(residency_in)),
        weights(std::move(weights_in)),
        num_mapped_blocks(num_mapped_blocks_in) {}

  Residency residency;
  Weights weights;
  int32_t num_mapped_blocks = 0;  // of the KV cache, while it is resident; 0: all
};

// Of a change of weights: the error of a rank, or of a replica, that has refused it before it did anything
// (proto/worker.proto).
inline bool IsRefusal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status);
}

// What has come to a rank in an update; ranks that got the same say the same (proto/weights.proto).
struct ReceivedWeights {
  int64_t num_tensors = 0;
  int64_t num_bytes = 0;
  uint64_t checksum = 0;

  bool operator==(const ReceivedWeights&) const = default;
};

// How a change of weights has ended on the ranks.
struct WeightsOutcome {
  absl::Status status;
  bool untouched = false;             // of an error: every rank has the weights that it had
  std::string fingerprint;            // of the checkpoint that was read
  ReceivedWeights received;           // of an update that is finished
  std::vector<v1::UpdatePort> ports;  // of a direct one that has begun: of every rank, or none
};

}  // namespace somnus
