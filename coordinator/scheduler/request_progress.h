#pragma once
// What a sequence takes along when another scheduler goes on with it. Pure functions.

#include "coordinator/request/request.h"
#include "coordinator/scheduler/sequence.h"

namespace somnus {

// The progress of a sequence that is not running and has no pending token.
RequestProgress ProgressOf(const Sequence& sequence);
// Brings a new sequence, whose request and prompt are set, to that point. `effective_priority` is
// overwritten.
void SetProgress(const RequestProgress& progress, Sequence* sequence);

}  // namespace somnus
