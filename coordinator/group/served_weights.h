#pragma once
// A file in the run directory names the weights that a server served last: the next server begins with the
// checkpoint of its command line. If the file names this checkpoint, its version goes on; if not, the server
// warns that the weights are older (NoteOfOlderWeights). Thread safe, for one directory in one process.

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace somnus {

// To be called after a change of the weights.
absl::Status RecordWeights(const std::string& run_dir, int64_t version, const std::string& source);

// The version of the weights of `source` when a server starts: the recorded version, if `source` is the
// recorded source too, or 1. `run_dir` may be empty.
int64_t FirstWeightsVersion(const std::string& run_dir, const std::string& source);

// The warning for weights of another source than the last change's; empty: there was no change, or the
// weights are those again.
std::string NoteOfOlderWeights(const std::string& run_dir, int64_t version, const std::string& source);

}  // namespace somnus
