#pragma once
// The progress of a sequence, with which another scheduler goes on. Pure functions.

#include "coordinator/request/request.h"
#include "coordinator/scheduler/sequence.h"

namespace somnus {

// The progress of a sequence that is not running and has no pending token.
RequestProgress ProgressOf(const Sequence& sequence);
// Brings a new sequence, whose request and prompt are set, to that point. `effective_priority` is
// overwritten.
void SetProgress(const RequestProgress& progress, Sequence* sequence);

}  // namespace somnus
