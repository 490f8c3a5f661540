#pragma once
// Which weights a server has served last, in its run directory: the next one begins with the checkpoint of
// its command line again, and says so. Thread safe, for one directory in one process.

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace somnus {

// To be called after a change of the weights.
absl::Status RecordWeights(const std::string& run_dir, int64_t version, const std::string& source);

// What is to be said where those of the server before were others than these; empty: nothing.
std::string NoteOfOlderWeights(const std::string& run_dir, int64_t version, const std::string& source);

}  // namespace somnus
