// ConnectionWatch over the simulated network. A simulated coordinator has no successor, so that nobody looks
// for a successor.

#include "worker/connection_watch.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/monotonic.h"
#include "tests/simulation/network.h"

namespace somnus {
namespace {

using simulation::World;

constexpr absl::Duration kLostPause = absl::Milliseconds(50);

class SimulatedConnectionWatch : public ConnectionWatch {
 public:
  explicit SimulatedConnectionWatch(std::shared_ptr<grpc::Channel> channel) : channel_(std::move(channel)) {}

  void WaitForLoss(absl::Duration time) override {
    simulation::Connection& connection = *channel_->connection();
    if (!connection.connected) {
      stop_.WaitFor(std::min(time, kLostPause));
      return;
    }
    World& world = *World::current();
    const absl::Duration deadline = world.now() + time;
    while (connection.connected && !stop_.stopped() && world.now() < deadline)
      world.Block(&connection, deadline);
  }

  bool WaitForListener(absl::Duration time) override {
    stop_.WaitFor(time);
    return false;
  }

  void Stop() override {
    stop_.Stop();
    World::current()->Wake(channel_->connection().get());
  }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  StopSignal stop_;
};

}  // namespace

std::unique_ptr<ConnectionWatch> ConnectionWatch::Create(std::shared_ptr<grpc::Channel> channel,
                                                         const std::string&) {
  return std::make_unique<SimulatedConnectionWatch>(std::move(channel));
}

}  // namespace somnus
