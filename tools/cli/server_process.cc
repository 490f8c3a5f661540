#include "tools/cli/server_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/random_hex.h"

namespace somnus::cli {
namespace {

constexpr size_t kLinesKept = 12, kMaxLineBytes = 4096, kKeyBytes = 32;
constexpr absl::Duration kStopGrace = absl::Seconds(20), kLook = absl::Milliseconds(100);
constexpr absl::string_view kServing = " serving ", kAddress = " on http://127.0.0.1:";

// The environment of the server: this process's own, with the keys in the place of those that are there.
std::vector<std::string> EnvironmentWith(const std::string& api_key, const std::string& admin_api_key) {
  std::vector<std::string> variables;
  for (char** one = environ; *one != nullptr; ++one) {
    const absl::string_view name = absl::string_view(*one).substr(0, absl::string_view(*one).find('='));
    if (name != "SOMNUS_API_KEY" && name != "SOMNUS_ADMIN_API_KEY") variables.emplace_back(*one);
  }
  variables.push_back(absl::StrCat("SOMNUS_API_KEY=", api_key));
  variables.push_back(absl::StrCat("SOMNUS_ADMIN_API_KEY=", admin_api_key));
  return variables;
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// In the child, where nothing may be allocated.
[[noreturn]] void BecomeServer(pid_t parent, int log, char* const* argv, char* const* environment) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  signal(SIGINT, SIG_DFL);
  execve(argv[0], argv, environment);
  _exit(127);
}

// The port in "... serving NAME on http://127.0.0.1:8000, admin ..."; 0: the line says something else.
int PortOf(absl::string_view line) {
  if (line.find(kServing) == line.npos) return 0;
  const size_t at = line.find(kAddress);
  if (at == line.npos) return 0;
  const absl::string_view rest = line.substr(at + kAddress.size());
  int port = 0;
  return absl::SimpleAtoi(rest.substr(0, rest.find_first_not_of("0123456789")), &port) ? port : 0;
}

}  // namespace

ServerProcess::ServerProcess() : api_key_(RandomHex(kKeyBytes)), admin_api_key_(RandomHex(kKeyBytes)) {}

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(const std::string& coordinator,
                                                                    const std::vector<std::string>& args) {
  std::unique_ptr<ServerProcess> process(new ServerProcess());
  std::vector<std::string> command = {coordinator, "--port=0", "--shutdown-timeout=1s"};
  command.insert(command.end(), args.begin(), args.end());
  // The last value of a flag holds: the server is on this host alone, where PortOf looks for it.
  command.insert(command.end(), {"--host=127.0.0.1", "--admin-host=127.0.0.1"});
  const std::vector<std::string> variables = EnvironmentWith(process->api_key_, process->admin_api_key_);
  const std::vector<char*> argv = Pointers(command), environment = Pointers(variables);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return absl::InternalError(absl::StrCat("pipe: ", strerror(errno)));
  const pid_t parent = getpid();
  process->pid_ = fork();
  if (process->pid_ == 0) BecomeServer(parent, ends[1], argv.data(), environment.data());
  const int fork_error = errno;
  close(ends[1]);
  if (process->pid_ < 0) {
    close(ends[0]);
    return absl::InternalError(absl::StrCat("fork: ", strerror(fork_error)));
  }
  process->reader_ = std::thread([self = process.get(), fd = ends[0]] { self->ReadLog(fd); });
  return process;
}

ServerProcess::~ServerProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGTERM);
    const absl::Time give_up = absl::Now() + kStopGrace;
    while (waitpid(pid_, nullptr, WNOHANG) == 0) {
      if (absl::Now() < give_up) {
        absl::SleepFor(absl::Milliseconds(10));
        continue;
      }
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
      break;
    }
  }
  if (reader_.joinable()) reader_.join();
}

void ServerProcess::ReadLog(int fd) {
  std::string pending;
  char buffer[4096];
  while (true) {
    const ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    pending.append(buffer, static_cast<size_t>(n));
    for (size_t end; (end = pending.find('\n')) != pending.npos; pending.erase(0, end + 1))
      NoteLine(pending.substr(0, end));
    if (pending.size() > kMaxLineBytes) pending.clear();
  }
  close(fd);
  absl::MutexLock lock(&mutex_);
  log_ended_ = true;
}

void ServerProcess::NoteLine(const std::string& line) {
  absl::MutexLock lock(&mutex_);
  if (port_ == 0) port_ = PortOf(line);
  if (last_lines_.size() == kLinesKept) last_lines_.pop_front();
  last_lines_.push_back(line.substr(0, kMaxLineBytes));
}

absl::Status ServerProcess::LastWords() {
  if (last_lines_.empty()) return absl::FailedPreconditionError("the server has ended without a word");
  return absl::FailedPreconditionError(
      absl::StrCat("the server has ended; its last words:\n  ", absl::StrJoin(last_lines_, "\n  ")));
}

absl::StatusOr<int> ServerProcess::AwaitReady(const std::atomic<bool>* cancel,
                                              const std::function<void()>& waits) {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      const auto settled = [this]()
                               ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return port_ != 0 || log_ended_; };
      mutex_.AwaitWithTimeout(absl::Condition(&settled), kLook);
      if (port_ != 0) return port_;
      if (log_ended_) return LastWords();
    }
    if (*cancel) return absl::CancelledError("interrupted");
    waits();
  }
}

}  // namespace somnus::cli
