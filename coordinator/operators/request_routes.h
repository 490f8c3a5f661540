#pragma once
// GET /requests and GET /requests/{id} on operators' port: what requests there are, and what has happened to
// one. No prompt and no output is shown. Pure but for the time; for threads that may take a while.
//
// GET /requests?state=open|waiting|running|preempted|ended|all&model=NAME&match=TEXT&sort=age|tokens|wait
//     &limit=N        match: a part of the id, or of the model's or the user's name; with state=ended the one
//                     that ended last comes first, and sort says nothing
//   {"object": "list", "now": 1764460800.5,
//    "counts": {"waiting": 1, "running": 2, "preempted": 0, "ended": 40},
//    "users": [{"user": "ann", "num_open": 2, "num_output_tokens": 40}, ...],    of open ones, 20 at most
//    "data": [REQUEST, ...]}                                                    `limit` at most
// GET /requests/{id}
//   REQUEST with "events": [{"event": "queued", "at": 1764460800.0, "count": 1, "detail": ""}, ...] and
//   "num_dropped_events": 0
// REQUEST: {"request_id": "cmpl-1", "model": "smollm2", "user": "ann", "state": "running",
//   "finish_reason": null, "received": 1764460799.9, "age_s": 0.6, "queue_s": 0.1, "ttft_s": 0.2,
//   "num_choices": 1, "priority": 0, "num_prompt_tokens": 5, "num_output_tokens": 12, "max_tokens": 64,
//   "num_preemptions": 0}
// Times of day are Unix seconds; a moment that has not come is null. age_s is from the arrival to now, or to
// the end.

#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/http/http_response.h"
#include "coordinator/http/routes.h"
#include "coordinator/openai/model_table.h"

namespace somnus {

// `models`: all that are served. `match`: of either route.
HttpResponse AnswerRequests(const std::vector<SharedModel>& models, const RouteMatch& match,
                            absl::string_view query);

}  // namespace somnus
