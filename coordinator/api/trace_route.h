#pragma once
// GET /trace: what an engine did lately, in the JSON that Chrome's and Perfetto's viewers read ("Trace Event
// Format": complete events, in microseconds). Thread safe.

#include <nlohmann/json.hpp>
#include <string>

#include "coordinator/api/http_response.h"
#include "coordinator/api/lifecycle_parameters.h"
#include "coordinator/api/served_model.h"
#include "coordinator/metrics/step_trace.h"

namespace somnus {

// A row for the steps of each replica, and one for what else took the engine's time.
nlohmann::ordered_json TraceJson(const std::string& model, const Trace& trace);

// Of the last `seconds`, at most an hour; without the parameter 10.
HttpResponse TraceResponse(const ServedModel& model, const LifecycleParameters& parameters);

}  // namespace somnus
