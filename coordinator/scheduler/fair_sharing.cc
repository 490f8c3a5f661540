// The Scheduler's part for fair sharing among users. Tokens of a prompt are charged when a step that computes
// them is made, and tokens of output when they are accepted. What comes from the prefix cache or from another
// choice costs nothing, and nothing is charged again when it is computed again.

#include <algorithm>
#include <map>
#include <utility>

#include "coordinator/scheduler/scheduler.h"

namespace somnus {

void Scheduler::ChargePrompt(Sequence* sequence) {
  const int64_t num_tokens = std::min(sequence->num_computed, sequence->prompt_len());
  if (num_tokens <= sequence->num_charged) return;
  sequence->Charge(UserAccounts::kPromptWeight * (num_tokens - sequence->num_charged));
  sequence->num_charged = num_tokens;
}

// Brings what runs into the order of what its users have had by now, and the sequence that is next to the
// front of what waits. Nobody looks at the others that wait.
void Scheduler::OrderByService() {
  std::map<ServiceKey, SequencePtr> ordered;
  while (!running_.empty()) {
    auto node = running_.extract(running_.begin());
    Sequence& sequence = *node.mapped();
    sequence.service = sequence.visit->service();
    node.key() = KeyOf(sequence);
    ordered.insert(ordered.end(), std::move(node));  // most stay in their order
  }
  running_ = std::move(ordered);
  waiting_.RefreshFirst();
}

}  // namespace somnus
