#pragma once
// GET /trace: the work of an engine lately, in the JSON that Chrome's and Perfetto's viewers read ("Trace
// Event Format": complete events, in microseconds). Thread safe.

#include <nlohmann/json.hpp>
#include <string>

#include "coordinator/http/http_response.h"
#include "coordinator/metrics/step_trace.h"
#include "coordinator/openai/served_model.h"
#include "coordinator/operators/lifecycle_parameters.h"

namespace somnus {

// A row for the steps of each replica, and a row for everything else that took the engine's time.
nlohmann::ordered_json TraceJson(const std::string& model, const Trace& trace);

// The trace covers the last `seconds`, at most an hour; without the parameter 10.
HttpResponse TraceResponse(const ServedModel& model, const LifecycleParameters& parameters);

}  // namespace somnus
