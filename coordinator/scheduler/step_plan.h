#pragma once
// What a Scheduler returns: a step, what a reply did, and who has expired. Values.

#include <cstdint>
#include <vector>

#include "coordinator/request/expiry.h"
#include "coordinator/scheduler/sequence.h"
#include "proto/worker.pb.h"

namespace somnus {

// One step, and what the engine needs to know of it.
struct StepPlan {
  v1::StepRequest request;
  int32_t num_tokens = 0;
  std::vector<SequencePtr> first_scheduled;  // admitted for the first time

  bool empty() const {
    return request.sequences_size() + request.swap_outs_size() + request.swap_ins_size() == 0;
  }
};

// What a reply did for one sequence, whose state is kFinished when output.finish_reason is set.
struct SequenceOutput {
  SequencePtr sequence;
  RequestOutput output;
};

struct ExpiredSequence {
  SequencePtr sequence;
  ExpiryCause cause;
};

}  // namespace somnus
