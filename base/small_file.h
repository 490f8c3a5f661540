#pragma once
// Small files that flags name: keys, secrets, certificates. Only a regular file is read: a FIFO or a device
// would hold up its reader for as long as nobody writes.

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace somnus {

// InvalidArgument begins with the path, and says what is wrong with the file.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes);

// The same of a file that others can neither read nor write. The file's group may read it: Kubernetes gives a
// secret to a process's group.
absl::StatusOr<std::string> ReadPrivateFile(const std::string& path, size_t max_bytes);

}  // namespace somnus
