// The messages to a service manager, in whose place the test listens on a socket.

#include "base/service_manager.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "tests/fakes/notify_listener.h"
#include "tests/fakes/unique_name.h"

namespace somnus {
namespace {

TEST(ServiceManagerTest, TellsThatItServesAndThatItStops) {
  for (const std::string& name : {AbstractNotifyName(), "/tmp/" + UniqueName()}) {
    NotifyListener listener(name);
    ServiceManager manager({{"NOTIFY_SOCKET", name}});
    manager.Ready("serving smollm2\nMAINPID=1");
    EXPECT_EQ(listener.Next(), "READY=1\nSTATUS=serving smollm2 MAINPID=1\n");
    manager.Stopping();
    EXPECT_EQ(listener.Next(), "STOPPING=1\n");
  }
}

TEST(ServiceManagerTest, FeedsTheWatchdogWhileTheProcessIsAlive) {
  NotifyListener listener(AbstractNotifyName());
  std::atomic<bool> alive{true};
  std::atomic<int> questions{0};
  ServiceManager manager({{"NOTIFY_SOCKET", AbstractNotifyName()}, {"WATCHDOG_USEC", "30000"}});
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
  NotifyListener listener(AbstractNotifyName());
  for (const Environment& watchdog :
       {Environment{}, Environment{{"WATCHDOG_USEC", "0"}}, Environment{{"WATCHDOG_USEC", "soon"}},
        Environment{{"WATCHDOG_USEC", "1000"}, {"WATCHDOG_PID", "1"}}}) {
    Environment environment = watchdog;
    environment["NOTIFY_SOCKET"] = AbstractNotifyName();
    ServiceManager manager(environment);
    manager.Watch([] {
      ADD_FAILURE() << "nobody should ask";
      return true;
    });
    manager.Stopping();
    EXPECT_EQ(listener.Next(), "STOPPING=1\n");
  }
  ServiceManager watched({{"NOTIFY_SOCKET", AbstractNotifyName()},
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
  NotifyListener listener(AbstractNotifyName());
  setenv("NOTIFY_SOCKET", AbstractNotifyName().c_str(), 1);
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
