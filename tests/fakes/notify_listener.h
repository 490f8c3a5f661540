#pragma once
// The socket of a service manager (base/service_manager.h), which a test listens on in the manager's place.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>

#include "tests/fakes/unique_name.h"

namespace somnus {

inline constexpr int kNotifyPatienceMs = 20'000;

// A name of the abstract name space, which leaves no file: the same name throughout this process.
inline const std::string& AbstractNotifyName() {
  static const auto& name = *new std::string("@" + UniqueName());
  return name;
}

// The manager's end of the socket. `name` is a path, or starts with '@'.
class NotifyListener {
 public:
  explicit NotifyListener(const std::string& name)
      : name_(name), fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    const socklen_t size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0) << strerror(errno);
  }
  ~NotifyListener() {
    close(fd_);
    if (name_[0] == '/') unlink(name_.c_str());
  }

  // The next datagram, or "" when none comes in time.
  std::string Next(int patience_ms = kNotifyPatienceMs) {
    pollfd entry = {fd_, POLLIN, 0};
    if (poll(&entry, 1, patience_ms) != 1) return "";
    char text[1024];
    const ssize_t size = recv(fd_, text, sizeof(text), 0);
    return size < 0 ? "" : std::string(text, static_cast<size_t>(size));
  }

 private:
  const std::string name_;
  const int fd_;
};

}  // namespace somnus
