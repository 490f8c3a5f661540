#pragma once
// The last words of a worker, by a pipe to the coordinator that started the worker: the instruction set that
// the worker computes with, and the reason why the worker ends. The pipe is open before the worker can be
// reached, and still after the worker has ended in any way.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace somnus {

// The pipe's descriptor in the worker, and the environment variable with that number. A process that no
// coordinator started has no such variable, and sends no last words.
inline constexpr int kLastWordsFd = 3;
inline constexpr absl::string_view kLastWordsVariable = "SOMNUS_LAST_WORDS";

struct LastWords {
  std::string cpu_isa;  // empty: the worker ended before the choice
  std::string error;    // empty: the worker gave no reason
  // A new process with the same command line, environment and host would end alike: the status was
  // FailedPrecondition, InvalidArgument or Unimplemented.
  bool recurs = false;
};

// The worker calls these functions. They do not wait: words that the pipe does not take are lost. SIGPIPE
// must be ignored.
void TellCpuIsa(absl::string_view name);
void TellError(const absl::Status& status);

// The coordinator calls this function after the worker has ended. `fd`: the reading end of the pipe. Does not
// wait, and reads a few KiB at most.
LastWords ReadLastWords(int fd);

}  // namespace somnus
