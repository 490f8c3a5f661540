#pragma once
// The file of --config (proto/serve_config.proto): several models, each with flags of its own.
//
// A setting of the file is the flag of its name, and is set by that flag's own row of the table; so a value
// means the same in either place, and is refused in the same words. From the weakest to the strongest: a
// flag's default, the file's settings of all models, the command line, the file's settings of one model.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/flags/flags.h"

namespace somnus {

// To be called once after `args`, a command line, was parsed into `flags`. Without --config nothing changes;
// else `flags` are set anew, from the file and from `args`. InvalidArgument names the file, the line and the
// field.
absl::Status AddServeConfig(const std::vector<std::string>& args, Flags* flags);

}  // namespace somnus
