#pragma once
// The choices of one request: which choices are preempted and come back together, and which choices wait to
// fork the prompt of the first choice.
//
// All or nothing holds against other requests: running choices go together, and come back together. A request
// that has the cache to itself gives up choice after choice, the last choice first, and each choice comes
// back as soon as there is room. So a request whose choices never have room together is served all the same.
//
// Forks: the first choice computes the prompt, and the other choices begin in the step in which the first
// choice samples. Each samples from the same logits, with its own seed.
//
// Owns the groups of choices by request; sequences share them (choice_group.h). Not thread safe.

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "coordinator/scheduler/choice_group.h"
#include "coordinator/scheduler/sequence.h"

namespace somnus {

class Choices {
 public:
  // A new sequence joins the group of its request. `first`: the live sequence that the request names as the
  // first choice; null: there is none.
  void Join(const SequencePtr& sequence, const SequencePtr& first);
  // The sequence has ended.
  void OnForget(Sequence* sequence);

  // Makes a new sequence wait for the prompt of `source`, if `source` computes the same and has no token yet.
  // Returns whether the sequence waits.
  static bool AwaitFork(const SequencePtr& sequence, const SequencePtr& source);
  // The sequence for whose prompt a sequence waits; null: the sequence waits for no prompt.
  static SequencePtr ForkSource(const Sequence& sequence);
  // The live sequences that wait for the prompt of `source`.
  static std::vector<SequencePtr> ForksOf(const Sequence& source);
  // The same when `source` samples: the sequences wait no longer.
  static std::vector<SequencePtr> TakeForks(Sequence* source);

  // The sequence and the other choices of its request that run.
  static std::vector<SequencePtr> Running(const SequencePtr& sequence);
  // The sequence and the choices that were preempted together with the sequence and still wait.
  static std::vector<SequencePtr> WaitingTogether(const SequencePtr& sequence);
  // The sequence and the suspended choices of its request behind a place in the order of service.
  static std::vector<SequencePtr> SuspendedBehind(const SequencePtr& sequence, const ServiceKey& behind);

  // The sequences were preempted together. From now on these sequences, and the choices of an earlier common
  // preemption that have not come back, wait until there is room for all.
  static void KeepTogether(const std::vector<SequencePtr>& preempted);
  // The sequence has come back, or goes on alone.
  static void LeaveTogether(Sequence* sequence);

 private:
  absl::flat_hash_map<std::string, std::shared_ptr<ChoiceGroup>> groups_;  // by the first choice's id
};

}  // namespace somnus
