#include "base/service_manager.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/log.h"

namespace somnus {
namespace {

constexpr char kSocketVariable[] = "NOTIFY_SOCKET";
constexpr char kWatchdogVariable[] = "WATCHDOG_USEC";
constexpr char kWatchdogPidVariable[] = "WATCHDOG_PID";
constexpr size_t kMaxStatusBytes = 256;
// Limits the wait for a manager that reads nothing: the end of the process, and of its watch, waits for a
// send.
constexpr absl::Duration kSendPatience = absl::Seconds(1);

std::string ValueOf(const Environment& environment, const char* variable) {
  const auto at = environment.find(variable);
  return at == environment.end() ? "" : at->second;
}

// A path, or after '@' a name of the abstract name space, whose first byte is zero. False for anything else.
bool MakeAddress(const std::string& socket, sockaddr_un* address, socklen_t* size) {
  if (socket.size() < 2 || socket.size() >= sizeof(address->sun_path)) return false;
  if (socket[0] != '/' && socket[0] != '@') return false;
  *address = {};
  address->sun_family = AF_UNIX;
  memcpy(address->sun_path, socket.data(), socket.size());
  if (socket[0] == '@') address->sun_path[0] = '\0';
  *size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket.size());
  return true;
}

}  // namespace

ServiceManager::ServiceManager(const Environment& environment)
    : socket_(ValueOf(environment, kSocketVariable)) {
  sockaddr_un address;
  socklen_t size;
  if (!socket_.empty() && !MakeAddress(socket_, &address, &size)) {
    LogWarning("{}: this is no socket of a service manager; nobody is told", kSocketVariable);
    socket_.clear();
  }
  int64_t microseconds;
  if (!absl::SimpleAtoi(ValueOf(environment, kWatchdogVariable), &microseconds) || microseconds <= 0) return;
  const std::string watched = ValueOf(environment, kWatchdogPidVariable);
  if (!watched.empty() && watched != absl::StrCat(getpid())) return;
  watch_interval_ = absl::Microseconds(microseconds) / 3;
}

ServiceManager::~ServiceManager() {
  stop_.Stop();
  if (thread_.joinable()) thread_.join();
}

std::unique_ptr<ServiceManager> ServiceManager::TakeFromEnvironment() {
  auto manager = std::make_unique<ServiceManager>(ProcessEnvironment());
  for (const char* variable : {kSocketVariable, kWatchdogVariable, kWatchdogPidVariable}) unsetenv(variable);
  return manager;
}

void ServiceManager::Ready(const std::string& status) {
  // A line break would start a variable.
  const std::string line = absl::StrReplaceAll(status.substr(0, kMaxStatusBytes), {{"\n", " "}});
  Send(absl::StrCat("READY=1\nSTATUS=", line, "\n"));
}

void ServiceManager::Stopping() { Send("STOPPING=1\n"); }

void ServiceManager::Watch(std::function<bool()> alive) {
  if (socket_.empty() || watch_interval_ <= absl::ZeroDuration()) return;
  thread_ = std::thread([this, alive = std::move(alive)] {
    do {
      if (alive()) Send("WATCHDOG=1\n");
    } while (!stop_.WaitFor(watch_interval_));
  });
}

void ServiceManager::Send(const std::string& lines) const {
  if (socket_.empty()) return;
  sockaddr_un address;
  socklen_t size;
  MakeAddress(socket_, &address, &size);
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const timeval limit = absl::ToTimeval(kSendPatience);
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  const ssize_t sent = fd < 0 ? -1
                              : sendto(fd, lines.data(), lines.size(), MSG_NOSIGNAL,
                                       reinterpret_cast<const sockaddr*>(&address), size);
  if (sent < 0) LogWarning("the service manager cannot be told: {}", strerror(errno));
  if (fd >= 0) close(fd);
}

}  // namespace somnus
