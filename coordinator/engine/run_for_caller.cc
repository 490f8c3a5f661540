#include "coordinator/engine/run_for_caller.h"

#include "base/threads.h"
#include "coordinator/engine/caller.h"

namespace somnus {

void RunForCaller(size_t count, const std::function<void(size_t)>& work) {
  const Caller begun = BegunCaller();
  RunTogether(count, [&](size_t i) {
    const CallerScope scope(begun);
    work(i);
  });
}

}  // namespace somnus
