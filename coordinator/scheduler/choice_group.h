#pragma once
// Plain state of the choices of one request (parallel sampling). The choices are sequences of their own that
// share blocks. Choices (choices.h) keeps this state; sequences hold it through shared pointers.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace somnus {

struct Sequence;

// The live choices of a request in order of arrival. The group exists from the second choice on.
struct ChoiceGroup {
  std::string first_id;  // of the first choice, which may have ended
  std::vector<std::weak_ptr<Sequence>> members;
};

// Choices that were preempted together, and wait until there is room for all.
struct PreemptedTogether {
  int32_t num_waiting = 0;         // choices that have not come back
  bool comes_back = false;         // there was room: nobody goes ahead of the choices that still wait
  bool ignores_watermark = false;  // nothing else ran then
};

// The part of a sequence that is about the other choices of its request.
struct ChoiceLinks {
  // Until this sequence is scheduled: the sequences that wait to fork its prompt, and the sequence whose
  // prompt this sequence waits to fork.
  std::vector<std::weak_ptr<Sequence>> forks;
  std::weak_ptr<Sequence> fork_source;
  std::shared_ptr<ChoiceGroup> group;           // null: the request has one choice
  std::shared_ptr<PreemptedTogether> together;  // set while the sequence waits after a common preemption
};

}  // namespace somnus
