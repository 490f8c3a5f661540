#pragma once
// Runs the parts of a lifecycle call on several threads, which keep the call's client.

#include <cstddef>
#include <functional>

namespace somnus {

// RunTogether (base/threads.h) for the parts of a call that has begun: on every thread the calls of `work`
// belong to BegunCaller (caller.h).
void RunForCaller(size_t count, const std::function<void(size_t)>& work);

}  // namespace somnus
