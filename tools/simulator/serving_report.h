#pragma once
// A simulation's outcome for people and for scripts.

#include <nlohmann/json.hpp>
#include <string>

#include "tools/simulator/serving_simulation.h"

namespace somnus {

// A flat object; docs/paper.md explains the names.
nlohmann::json ToJson(const ServingOutcome& outcome);
std::string ToText(const ServingOutcome& outcome);

}  // namespace somnus
