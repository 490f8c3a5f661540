#include "base/process_id.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/monotonic.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr absl::Duration kKillPatience = absl::Seconds(10);
constexpr absl::Duration kLongestPoll = absl::Hours(1);

absl::Status Gone(pid_t pid) { return absl::NotFoundError(absl::StrCat("there is no process ", pid)); }

}  // namespace

absl::StatusOr<ProcessId> FindProcess(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  // "77 (name) S ...": the name may have parentheses itself. Fields are counted from 1; the state is the 3rd,
  // the start time the 22nd.
  const size_t name_end = stat.rfind(") ");
  if (name_end == std::string::npos) return Gone(pid);
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(stat).substr(name_end + 2), ' ');
  constexpr size_t kStartTime = 22 - 3;
  ProcessId process{.pid = pid};
  if (fields.size() <= kStartTime || !absl::SimpleAtoi(fields[kStartTime], &process.start_time))
    return Gone(pid);
  if (fields[0] == "Z" || fields[0] == "X") return Gone(pid);
  return process;
}

ProcessId ThisProcess() {
  const absl::StatusOr<ProcessId> process = FindProcess(getpid());
  SOMNUS_CHECK(process.ok());
  return *process;
}

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  const std::string id{std::istreambuf_iterator<char>(file), {}};
  return std::string(absl::StripAsciiWhitespace(id));
}

bool IsRunning(const ProcessId& process) {
  const absl::StatusOr<ProcessId> now = FindProcess(process.pid);
  return now.ok() && *now == process;
}

absl::StatusOr<int> OpenProcess(const ProcessId& process) {
  const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0));
  if (descriptor < 0) {
    return errno == ESRCH ? Gone(process.pid) : absl::ErrnoToStatus(errno, "pidfd_open");
  }
  // The descriptor belongs to the process that had the id at pidfd_open, and IsRunning can see only that
  // process under the id now.
  if (IsRunning(process)) return descriptor;
  close(descriptor);
  return Gone(process.pid);
}

absl::Status SignalProcess(int descriptor, int signal) {
  if (syscall(SYS_pidfd_send_signal, descriptor, signal, nullptr, 0) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "pidfd_send_signal");
}

bool AwaitProcess(int descriptor, absl::Duration timeout) {
  const MonotonicTime deadline = MonotonicNow() + timeout;
  while (true) {
    const absl::Duration left = std::max(deadline - MonotonicNow(), absl::ZeroDuration());
    pollfd fd = {descriptor, POLLIN, 0};
    const int64_t ms =
        absl::ToInt64Milliseconds(absl::Ceil(std::min(left, kLongestPoll), absl::Milliseconds(1)));
    if (poll(&fd, 1, static_cast<int>(ms)) > 0) return true;
    if (left <= absl::ZeroDuration()) return false;
  }
}

absl::Status EndProcesses(const std::vector<ProcessId>& processes, absl::Duration grace) {
  std::vector<std::pair<pid_t, int>> open;
  const auto close_all = absl::MakeCleanup([&] {
    for (const auto& [pid, descriptor] : open) close(descriptor);
  });
  for (const ProcessId& process : processes) {
    const absl::StatusOr<int> descriptor = OpenProcess(process);
    if (absl::IsNotFound(descriptor.status())) continue;
    RETURN_IF_ERROR(descriptor.status());
    open.emplace_back(process.pid, *descriptor);
    const absl::Status sent = SignalProcess(*descriptor, SIGTERM);
    if (!sent.ok() && !absl::IsNotFound(sent)) {
      return absl::Status(sent.code(), absl::StrCat("process ", process.pid, ": ", sent.message()));
    }
  }
  const MonotonicTime deadline = MonotonicNow() + grace;
  for (const auto& [pid, descriptor] : open) {
    if (!AwaitProcess(descriptor, deadline - MonotonicNow())) (void)SignalProcess(descriptor, SIGKILL);
  }
  for (const auto& [pid, descriptor] : open) {
    if (AwaitProcess(descriptor, kKillPatience)) continue;
    return absl::DeadlineExceededError(absl::StrCat("process ", pid, " is still there ",
                                                    absl::FormatDuration(kKillPatience), " after SIGKILL"));
  }
  return absl::OkStatus();
}

}  // namespace somnus
