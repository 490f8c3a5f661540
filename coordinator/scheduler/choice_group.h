#pragma once
// The choices of one request (parallel sampling), which are sequences of their own that share blocks. Plain
// state of the Scheduler (choices.cc), which has it through shared pointers of the sequences.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace somnus {

struct Sequence;

// Those that are live, in order of arrival; kept from the second one on.
struct ChoiceGroup {
  std::string first_id;  // of the first choice, which may have ended
  std::vector<std::weak_ptr<Sequence>> members;
};

// Choices that were preempted together: they wait until there is room for all of them.
struct PreemptedTogether {
  int32_t num_waiting = 0;         // that have not come back
  bool comes_back = false;         // there was room: nobody goes ahead of the ones that still wait
  bool ignores_watermark = false;  // nothing else ran then
};

}  // namespace somnus
