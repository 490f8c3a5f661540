#pragma once
// Restarts the workers of a simulated engine's replicas, replica by replica, regardless of all other events.

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/engine/engine.h"
#include "tests/simulation/site.h"

namespace somnus::simulation {

class Roller {
 public:
  // `note` is called after every call, with the call's name and result.
  Roller(Site* site, Engine* engine, std::function<void(const std::string&, const absl::Status&)> note)
      : site_(*site),
        world_(site->world),
        random_(site->world.random()),
        engine_(*engine),
        note_(std::move(note)) {}

  // One or two rolls, with pauses of up to `span`.
  void Work(absl::Duration span);
  int num_rolls() const { return num_rolls_; }
  // Workers that nothing has struck may end.
  bool is_calling() const { return is_calling_; }

 private:
  void Roll();

  Site& site_;
  World& world_;
  Random& random_;
  Engine& engine_;
  const std::function<void(const std::string&, const absl::Status&)> note_;
  int num_rolls_ = 0;  // that went well
  bool is_calling_ = false;
};

}  // namespace somnus::simulation
