#pragma once
// What a worker tells the coordinator that has started it, beside its exit code: with which instruction set
// it computes, and why it ends. By a pipe, which is there before the worker can be reached and after it has
// ended, however it ends.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace somnus {

// The pipe's descriptor in the worker, and the variable whose value is that number. A process that was not
// started so has no such variable, and tells nobody.
inline constexpr int kLastWordsFd = 3;
inline constexpr absl::string_view kLastWordsVariable = "SOMNUS_LAST_WORDS";

struct LastWords {
  std::string cpu_isa;  // empty: it ended before it had chosen one
  std::string error;    // empty: it did not say why
  // Another process with the same command line, environment and host would end alike: the status was
  // FailedPrecondition, InvalidArgument or Unimplemented.
  bool recurs = false;
};

// In the worker. Neither waits: what the pipe does not take is not told. SIGPIPE must be ignored.
void TellCpuIsa(absl::string_view name);
void TellError(const absl::Status& status);

// In the coordinator, after the worker has ended: what it has told through the pipe, of which `fd` is the
// other end. Does not wait, and reads a few KiB at most.
LastWords ReadLastWords(int fd);

}  // namespace somnus
