#pragma once
// The outcome of a client's request, for the access log and for traces: the numbers of all of its choices
// together. A value.

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "coordinator/request/request.h"

namespace somnus {

struct RequestSummary {
  std::string response_id;
  std::string model;
  std::string
      finish_reason;  // of the first choice: "stop", "length", "tool_calls", ...; empty: it has not ended
  int32_t num_choices = 0;  // with those of all prompts
  int32_t max_tokens = 0;   // of the first prompt
  double temperature = 1;
  double top_p = 1;
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // of prompts
  // By the wall clock. InfinitePast: the moment has not come.
  absl::Time arrival = absl::InfinitePast();  // at the engine
  RequestMoments moments;                     // the first of all choices
  absl::Time ended = absl::InfinitePast();    // the last choice
};

}  // namespace somnus
