#pragma once
// Small files that flags name. A file with a key, a secret or a certificate is read only where it is a
// regular file: a FIFO or a device would hold up its reader for as long as nobody writes.

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace somnus {

// InvalidArgument begins with the path, and says what is wrong with the file.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes);

// The same of a file that others can neither read nor write. The file's group may read it: Kubernetes gives a
// secret to a process's group.
absl::StatusOr<std::string> ReadPrivateFile(const std::string& path, size_t max_bytes);

// How long ReadPipedFile waits.
struct PipePatience {
  absl::Duration notice =
      absl::Seconds(1);                     // while nothing comes, until a line on stderr says for which file
  absl::Duration limit = absl::Minutes(1);  // while nothing comes, until DeadlineExceeded
  absl::Duration total = absl::Minutes(10);  // for the end of the text, until DeadlineExceeded
};

// The text of a regular file, or of a FIFO such as a shell's <(...), up to the end of its writers. Errors say
// what is wrong with the file, and do not name it: NotFound, when it cannot be opened, InvalidArgument,
// DeadlineExceeded.
absl::StatusOr<std::string> ReadPipedFile(const std::string& path, size_t max_bytes,
                                          const PipePatience& patience = {});

}  // namespace somnus
