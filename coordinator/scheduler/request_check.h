#pragma once
// Whether a request can ever be served, by the options alone. Thread safe: callers ask before the request is
// queued.

#include "absl/status/status.h"
#include "coordinator/request/request.h"
#include "coordinator/scheduler/scheduler_options.h"

namespace somnus {

// InvalidArgument for a request that can never be served: an empty prompt, a prompt beyond max_model_len,
// more blocks than there are, or more bytes than a step carries.
absl::Status CheckRequest(const SchedulerOptions& options, const EngineRequest& request);

}  // namespace somnus
