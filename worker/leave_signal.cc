#include "worker/leave_signal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"

namespace somnus {
namespace {

constexpr absl::Duration kLongestPoll = absl::Hours(1);

}  // namespace

LeaveSignal::LeaveSignal(pid_t parent) {
  signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  SOMNUS_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  signal_fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  SOMNUS_CHECK(signal_fd_ >= 0);
  SOMNUS_CHECK(pipe2(pipe_, O_CLOEXEC | O_NONBLOCK) == 0);
  if (parent <= 0) return;
  parent_fd_ = static_cast<int>(syscall(SYS_pidfd_open, parent, 0));
  // If it ended between our start and the call above, we have another parent by now.
  if (getppid() != parent) Leave(1, "the coordinator that started this worker is gone");
}

LeaveSignal::~LeaveSignal() {
  while (TakeReason() != nullptr) {  // later reasons, which nobody took
  }
  if (parent_fd_ >= 0) close(parent_fd_);
  close(signal_fd_);
  close(pipe_[0]);
  close(pipe_[1]);
}

void LeaveSignal::Leave(int exit_code, const std::string& reason) {
  auto message = std::make_unique<Reason>(Reason{exit_code, reason});
  const Reason* address = message.get();
  // When that fails the pipe is full of reasons.
  if (write(pipe_[1], &address, sizeof(address)) == sizeof(address)) message.release();
}

// The next one in the pipe, or null.
std::unique_ptr<LeaveSignal::Reason> LeaveSignal::TakeReason() {
  Reason* address = nullptr;
  if (read(pipe_[0], &address, sizeof(address)) != sizeof(address)) return nullptr;
  return std::unique_ptr<Reason>(address);
}

LeaveSignal::Reason LeaveSignal::Wait() {
  while (true) {
    const absl::Duration left = term_deadline_.has_value() ? *term_deadline_ - MonotonicNow() : kLongestPoll;
    if (left <= absl::ZeroDuration()) return {0, "SIGTERM, and the coordinator did not say otherwise"};
    const int64_t ms = absl::ToInt64Milliseconds(std::min(left, kLongestPoll)) + 1;  // past the deadline
    if (std::optional<Reason> reason = HandleEvents(static_cast<int>(ms))) return *reason;
  }
}

std::optional<LeaveSignal::Reason> LeaveSignal::HandleEvents(int timeout_ms) {
  const int parent_fd = watch_parent_ ? parent_fd_ : -1;  // poll passes over -1
  pollfd fds[3] = {{pipe_[0], POLLIN, 0}, {signal_fd_, POLLIN, 0}, {parent_fd, POLLIN, 0}};
  if (poll(fds, 3, timeout_ms) <= 0) return std::nullopt;
  if (const std::unique_ptr<Reason> reason = TakeReason(); reason != nullptr) return *reason;
  if (fds[2].revents != 0 && watch_parent_)
    return Reason{1, "the coordinator that started this worker is gone"};
  if (fds[1].revents != 0) return ReadSignal();
  return std::nullopt;
}

std::optional<LeaveSignal::Reason> LeaveSignal::ReadSignal() {
  signalfd_siginfo info;
  if (read(signal_fd_, &info, sizeof(info)) != sizeof(info)) return std::nullopt;
  const std::string name = strsignal(static_cast<int>(info.ssi_signo));
  const absl::Duration grace = absl::Milliseconds(term_grace_ms_.load());
  if (term_deadline_.has_value() || grace <= absl::ZeroDuration()) return Reason{0, name};
  LogInfo("{}: waiting up to {} for the coordinator to finish; once more leaves at once", name,
          absl::FormatDuration(grace));
  term_deadline_ = MonotonicNow() + grace;
  return std::nullopt;
}

}  // namespace somnus
