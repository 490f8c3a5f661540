// What a service manager is told, with a socket that the test listens on in its place.

#include "base/service_manager.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

constexpr int kPatienceMs = 20'000;

// The manager's end of the socket. `name` is a path, or starts with '@'.
class Listener {
 public:
  explicit Listener(const std::string& name)
      : name_(name), fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    const socklen_t size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0) << strerror(errno);
  }
  ~Listener() {
    close(fd_);
    if (name_[0] == '/') unlink(name_.c_str());
  }

  // The next datagram, or "" when none comes in time.
  std::string Next(int patience_ms = kPatienceMs) {
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

std::string AbstractName() { return absl::StrCat("@somnus-test-", getpid()); }

TEST(ServiceManagerTest, TellsThatItServesAndThatItStops) {
  for (const std::string& name : {AbstractName(), absl::StrCat(testing::TempDir(), "/notify-", getpid())}) {
    Listener listener(name);
    ServiceManager manager({{"NOTIFY_SOCKET", name}});
    manager.Ready("serving smollm2\nMAINPID=1");
    EXPECT_EQ(listener.Next(), "READY=1\nSTATUS=serving smollm2 MAINPID=1\n");
    manager.Stopping();
    EXPECT_EQ(listener.Next(), "STOPPING=1\n");
  }
}

TEST(ServiceManagerTest, FeedsTheWatchdogWhileTheProcessIsAlive) {
  Listener listener(AbstractName());
  std::atomic<bool> alive{true};
  std::atomic<int> questions{0};
  ServiceManager manager({{"NOTIFY_SOCKET", AbstractName()}, {"WATCHDOG_USEC", "30000"}});
  manager.Watch([&] {
    ++questions;
    return alive.load();
  });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(listener.Next(), "WATCHDOG=1\n");
  alive = false;
  const int asked = questions;
  while (questions < asked + 3) usleep(1000);
  while (!listener.Next(/*patience_ms=*/0).empty()) {
  }
  const int asked_again = questions;
  while (questions < asked_again + 3) usleep(1000);
  EXPECT_EQ(listener.Next(/*patience_ms=*/0), "");
}

TEST(ServiceManagerTest, NobodyWatchesUnlessThisProcessIsMeant) {
  Listener listener(AbstractName());
  for (const Environment& watchdog :
       {Environment{}, Environment{{"WATCHDOG_USEC", "0"}}, Environment{{"WATCHDOG_USEC", "soon"}},
        Environment{{"WATCHDOG_USEC", "1000"}, {"WATCHDOG_PID", "1"}}}) {
    Environment environment = watchdog;
    environment["NOTIFY_SOCKET"] = AbstractName();
    ServiceManager manager(environment);
    manager.Watch([] {
      ADD_FAILURE() << "nobody should ask";
      return true;
    });
    manager.Stopping();
    EXPECT_EQ(listener.Next(), "STOPPING=1\n");
  }
  ServiceManager watched({{"NOTIFY_SOCKET", AbstractName()},
                          {"WATCHDOG_USEC", "1000000"},
                          {"WATCHDOG_PID", absl::StrCat(getpid())}});
  watched.Watch([] { return true; });
  EXPECT_EQ(listener.Next(), "WATCHDOG=1\n");
}

TEST(ServiceManagerTest, WithoutAManagerNothingHappens) {
  const std::string long_name = absl::StrCat("/", std::string(200, 'x'));
  for (const std::string& name : {std::string(), std::string("relative"), std::string("/"), long_name,
                                  std::string("/no/such/socket"), std::string("vsock:2:1")}) {
    ServiceManager manager({{"NOTIFY_SOCKET", name}, {"WATCHDOG_USEC", "1000"}});
    manager.Ready("");
    manager.Watch([] { return true; });
    manager.Stopping();
  }
}

TEST(ServiceManagerTest, ChildrenDoNotInheritIt) {
  Listener listener(AbstractName());
  setenv("NOTIFY_SOCKET", AbstractName().c_str(), 1);
  setenv("WATCHDOG_USEC", "1000000", 1);
  setenv("WATCHDOG_PID", absl::StrCat(getpid()).c_str(), 1);
  const std::unique_ptr<ServiceManager> manager = ServiceManager::TakeFromEnvironment();
  for (const char* variable : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) {
    EXPECT_EQ(getenv(variable), nullptr) << variable;
  }
  manager->Stopping();
  EXPECT_EQ(listener.Next(), "STOPPING=1\n");
}

}  // namespace
}  // namespace somnus
