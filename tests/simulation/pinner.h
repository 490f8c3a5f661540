#pragma once
// Somebody who pins and unpins prefixes that clients' prompts begin with, regardless of all other events.

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/engine/engine.h"
#include "tests/simulation/site.h"

namespace somnus::simulation {

class Pinner {
 public:
  Pinner(Site* site, Engine* engine) : world_(site->world), random_(site->world.random()), engine_(*engine) {}

  // Up to a few pins, with pauses of up to `span`; some are left.
  void Work(absl::Duration span);
  // Ends the remaining pins. Nothing may hold blocks afterwards.
  void End();
  int num_pins() const { return num_pins_; }

 private:
  void Pin();
  void Unpin(std::string id);

  World& world_;
  Random& random_;
  Engine& engine_;
  std::vector<std::string> pinned_;  // ids
  int num_pins_ = 0;
};

}  // namespace somnus::simulation
