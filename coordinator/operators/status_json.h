#pragma once
// The status of models as JSON, for operators' page and for scripts. Members have the names of GetStatus and
// ListModelStatus (proto/control.proto). Pure functions, but for the moment that ages are counted from.

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "coordinator/openai/served_model.h"
#include "coordinator/residency/state_report.h"

namespace somnus {

// The status that a rank reports, for GET /status and for get_status of /collective_rpc.
nlohmann::ordered_json RankStatusJson(const v1::RankStatus& rank);
// Null while requests are served.
nlohmann::ordered_json StateReportJson(const StateReport& report);
// The state, the requests and the memory of a model, from its last snapshot.
nlohmann::ordered_json ModelStatusJson(const ServedModel& model);
// The details of one model: ranks, which are asked now, replicas, the map of KV blocks, the first open
// requests and the last events. Blocks until the ranks have answered, for at most 2 s.
nlohmann::ordered_json ModelDetailJson(const ServedModel& model);

}  // namespace somnus
