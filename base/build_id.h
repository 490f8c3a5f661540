#pragma once
// Which build of this program runs. Ranks of one group compare the builds' ids: two builds may add up in
// different orders or read a message differently, so they never serve together.

#include <string>

#include "absl/status/statusor.h"

namespace somnus {

// The GNU build id of the running program, in hexadecimal: equal for equal builds, different for different
// builds. The linker writes the id into the program. A program without an id has "version-" and the version,
// which at least tells versions apart. Thread safe.
const std::string& BuildId();

// The build id of the program at `path`: what BuildId returns in a process that runs the program. NotFound
// where there is no such file, InvalidArgument where the file is no program.
absl::StatusOr<std::string> BuildIdOf(const std::string& path);

}  // namespace somnus
