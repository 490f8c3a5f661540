#pragma once
// The report of a transition as JSON. Pure functions.

#include <nlohmann/json_fwd.hpp>

#include "coordinator/residency/transition_report.h"

namespace somnus {

nlohmann::ordered_json ToJson(const TagBytes& bytes);
// By tag that the call named: {"state", "changed"}.
nlohmann::ordered_json TagStatesJson(const TransitionReport& report);
// By rank: {"replica", "rank", "tags", "seconds"}.
nlohmann::ordered_json RanksJson(const TransitionReport& report);

}  // namespace somnus
