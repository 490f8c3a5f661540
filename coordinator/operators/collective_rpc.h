#pragma once
// POST /collective_rpc: calls on all ranks by name. Only the methods of a fixed list can be called, each with
// parameters of fixed types. Thread safe; blocks as the call does.

#include "absl/strings/string_view.h"
#include "coordinator/http/http_response.h"
#include "coordinator/openai/served_model.h"

namespace somnus {

// Returns {"results": [an entry for each rank]}: for get_status the rank's status, for other methods null.
HttpResponse AnswerCollectiveRpc(const ServedModel& model, absl::string_view body);

}  // namespace somnus
