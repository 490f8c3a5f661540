#pragma once
// The operators' routes that change the engine: /sleep, /wake_up, /pause, /resume, /reset_prefix_cache,
// /abort_requests, /collective_rpc, /roll and the routes of adapters; and /trace. Thread safe.

#include "absl/strings/string_view.h"
#include "coordinator/http/http_response.h"
#include "coordinator/http/routes.h"
#include "coordinator/openai/model_table.h"
#include "coordinator/operators/lifecycle_parameters.h"

namespace somnus {

// Blocks until all ranks have replied, and open requests have ended where the call waits for them. `model` is
// the model, one of `models`, that `parameters` mean. The body is for the routes that read the body
// themselves.
HttpResponse AnswerLifecycle(const RouteSpec& spec, const ModelTable& models, const ServedModel& model,
                             const LifecycleParameters& parameters, absl::string_view body);

}  // namespace somnus
