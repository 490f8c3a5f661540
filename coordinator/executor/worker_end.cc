#include "coordinator/executor/worker_end.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

constexpr int kUsageExitCode = 2;  // of a program that does not understand its command line
// Exit codes of a shell; the first code is also the dynamic linker's.
constexpr int kNotFoundExitCode = 127;
constexpr int kNotExecutableExitCode = 126;

#if defined(__aarch64__)
constexpr char kLeastIsa[] = "neon";
#else
constexpr char kLeastIsa[] = "portable";
#endif

std::string IllegalInstruction(const LastWords& last) {
  const std::string computed = last.cpu_isa.empty() ? "before it had chosen an instruction set"
                                                    : absl::StrCat("while it computed with ", last.cpu_isa);
  return absl::StrCat(
      " ", computed, ": this CPU lacks an instruction; SOMNUS_CPU_ISA=", kLeastIsa,
      " takes only those that every CPU has, and `somnus doctor` shows which sets this one has");
}

WorkerEnd KilledBy(int signal, const LastWords& last, bool killed_for_memory) {
  WorkerEnd end{.words = absl::StrCat("was killed by signal ", signal, " (", strsignal(signal), ")")};
  if (signal == SIGILL) {
    absl::StrAppend(&end.words, IllegalInstruction(last));
    end.recurs = true;
  } else if (signal == SIGKILL && killed_for_memory) {
    absl::StrAppend(&end.words, "; the system has killed for lack of memory meanwhile (see dmesg)");
  }
  return end;
}

}  // namespace

WorkerEnd DescribeEnd(int wait_status, const std::string& binary, const LastWords& last,
                      bool killed_for_memory) {
  if (WIFSIGNALED(wait_status)) return KilledBy(WTERMSIG(wait_status), last, killed_for_memory);
  const int code = WEXITSTATUS(wait_status);
  WorkerEnd end{
      .words = absl::StrCat("exited with code ", code),
      .recurs = code == kUsageExitCode || code == kNotFoundExitCode || code == kNotExecutableExitCode,
      .refuses = last.recurs};
  if (!last.error.empty()) {
    absl::StrAppend(&end.words, ": ", last.error);
  } else if (code == kUsageExitCode) {
    absl::StrAppend(&end.words, ": ", binary,
                    " does not understand its command line or its environment; is it of this build?");
  } else if (code == kNotFoundExitCode) {
    absl::StrAppend(&end.words, ": ", binary, ", or a library that it needs, was not found; `ldd ", binary,
                    "` shows which");
  } else if (code == kNotExecutableExitCode) {
    absl::StrAppend(&end.words, ": ", binary, " cannot be executed");
  }
  return end;
}

int64_t NumKilledForMemory() {
  std::ifstream file("/proc/vmstat");
  std::string name;
  int64_t count = 0;
  while (file >> name >> count) {
    if (name == "oom_kill") return count;
  }
  return 0;
}

}  // namespace somnus
