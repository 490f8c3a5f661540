#pragma once
// Parts of a call on threads of their own, which belong to the call's client as the call does.

#include <cstddef>
#include <functional>

namespace somnus {

// RunTogether (base/threads.h) for the parts of a call that has begun: on every thread the calls of `work`
// belong to BegunCaller (caller.h).
void RunForCaller(size_t count, const std::function<void(size_t)>& work);

}  // namespace somnus
