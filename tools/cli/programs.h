#pragma once
// The programs beside this one: <bin>/tools/somnus, <bin>/coordinator/coordinator and so on.

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace somnus::cli {

// The path of "coordinator/coordinator", for example. FailedPrecondition: the program is not there; `remedy`
// says what brings it.
absl::StatusOr<std::string> ProgramPath(const std::string& name, const std::string& remedy);
absl::StatusOr<std::string> CoordinatorPath();

// The path of this program itself.
absl::StatusOr<std::string> OwnPath();

// The program's standard output once the program has ended, whatever its exit code; of its error output
// nothing is shown. An error: it cannot be started.
absl::StatusOr<std::string> OutputOf(const std::string& path, const std::vector<std::string>& args);

// Becomes the program, and does not return unless that fails; then returns the exit code, after an error on
// stderr.
int Become(const std::string& path, const std::vector<std::string>& args);

}  // namespace somnus::cli
