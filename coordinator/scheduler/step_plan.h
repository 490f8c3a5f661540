#pragma once
// The results of a Scheduler's calls: a step, the effects of a reply, and the requests that have expired.
// Values.

#include <cstdint>
#include <vector>

#include "coordinator/request/expiry.h"
#include "coordinator/scheduler/sequence.h"
#include "proto/worker.pb.h"

namespace somnus {

// A step, and the facts that the engine needs of the step.
struct StepPlan {
  v1::StepRequest request;
  int32_t num_tokens = 0;
  std::vector<SequencePtr> first_scheduled;  // admitted for the first time

  bool empty() const {
    return request.sequences_size() + request.swap_outs_size() + request.swap_ins_size() == 0;
  }
};

// The effect of a reply on a sequence, whose state is kFinished when output.finish_reason is set.
struct SequenceOutput {
  SequencePtr sequence;
  RequestOutput output;
};

struct ExpiredSequence {
  SequencePtr sequence;
  ExpiryCause cause;
};

}  // namespace somnus
