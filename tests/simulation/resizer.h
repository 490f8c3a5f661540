#pragma once
// Somebody who changes the size of a simulated engine's KV cache, like an elastic cache, regardless of all
// other events: sleeps at every level, recoveries, updates of the weights.

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/engine/engine.h"
#include "tests/simulation/site.h"

namespace somnus::simulation {

class Resizer {
 public:
  // `note` is called after every call, with the call's name and result.
  Resizer(Site* site, Engine* engine, std::function<void(const std::string&, const absl::Status&)> note)
      : world_(site->world), random_(site->world.random()), engine_(*engine), note_(std::move(note)) {}

  // Up to a few sizes, with pauses of up to `span`.
  void Work(absl::Duration span);
  int num_resizes() const { return num_resizes_; }
  bool is_calling() const { return is_calling_; }

 private:
  void Resize(int32_t blocks);

  World& world_;
  Random& random_;
  Engine& engine_;
  const std::function<void(const std::string&, const absl::Status&)> note_;
  int num_resizes_ = 0;
  bool is_calling_ = false;
};

}  // namespace somnus::simulation
