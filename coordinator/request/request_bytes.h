#pragma once
// How much memory requests hold while they wait: estimates in bytes of the parts that a client can make
// large.

#include <cstdint>
#include <vector>

#include "coordinator/request/request.h"

namespace somnus {

int64_t SamplingParamsBytes(const SamplingParams& sampling);

// Sets queued_bytes of requests that are submitted together: each request's own bytes, and an equal part of
// the record of sampling parameters that several of `requests` share.
void SetQueuedBytes(std::vector<EngineRequest>* requests);

}  // namespace somnus
