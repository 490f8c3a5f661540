#pragma once
// Slurm's lists of node names: "n[0-3,7],login1", "rack[1-2]node[08-11]". Pure functions.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace somnus {

// Returns the first name of the list, as `scontrol show hostnames` does: "n0" of the above, "rack1node08" of
// the second. The whole list is checked but never expanded, so a range of a billion nodes costs nothing.
// InvalidArgument says where the list is wrong; the error message continues a sentence that starts with the
// list.
absl::StatusOr<std::string> FirstSlurmNode(absl::string_view list);

}  // namespace somnus
