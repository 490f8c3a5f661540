#pragma once
// One sequence on its way through the scheduler: its tokens and how far they are computed. Plain state with
// token arithmetic; owned by the Scheduler, shared with the records of steps in flight. Engine loop thread
// only.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/request/request.h"
#include "coordinator/scheduler/choice_group.h"
#include "coordinator/scheduler/user_accounts.h"

namespace somnus {

struct BeamGroup;   // beam_group.h
struct DraftState;  // speculation.h

enum class SequenceState { kWaiting, kRunning, kFinished };

struct Sequence {
  // What every step reads of every sequence that decodes comes first, to be near in memory.
  std::vector<int32_t> tokens;  // the prompt, then the outputs known so far
  int64_t num_computed = 0;     // tokens in the cache once all steps sent are done
  int32_t num_pending = 0;      // tokens that steps in flight will sample, beyond `tokens`
  int32_t slot = -1;            // row of the workers' batch state while running
  SequenceState state = SequenceState::kWaiting;
  int32_t num_adopted = 0;  // tokens that the prefix cache served at the last admission
  int64_t num_charged = 0;  // tokens of the prompt for which the user was charged, or that cost nothing
  // Of a beam search: its first sequence, which stands for all, has the group; the others know that one.
  std::shared_ptr<BeamGroup> beams;
  std::shared_ptr<DraftState> draft;  // of speculative decoding; null: it has had none
  int32_t beam_place = 0;             // of a search's other beams: from 1 on
  // Until the sequence is scheduled: those that wait for its prompt, to fork it.
  std::vector<std::weak_ptr<Sequence>> forks;
  EngineRequest request;

  int64_t id = 0;            // in order of arrival
  int64_t arrival_step = 0;  // the scheduler's next step then
  // WaitingQueue sets these; under FCFS they stay 0.
  int64_t effective_priority = 0;  // smaller is served sooner
  int64_t waited_steps = 0;        // since effective_priority last improved; without the wait under way
  int64_t aging_due = 0;           // the step at which it improves next, while waiting
  // Of its user; null where users have no accounts, and once it has finished.
  std::shared_ptr<UserAccounts::Visit> visit;
  int64_t service = 0;  // of its user, when the sequence was last put in order

  bool is_suspended = false;  // it waits, and has its blocks: nothing is computed again
  bool is_kept = false;       // while suspended: its blocks were chosen to outlive a sleep
  bool is_swapped = false;    // it waits, and has its blocks in host memory
  int64_t swap_step = 0;      // the step that has swapped it out
  int32_t num_cached = 0;     // prompt tokens that the prefix cache served at first admission
  // Positions whose prompt log-probabilities were delivered, position 0 included: recomputation does not
  // deliver them again.
  int32_t num_prompt_logprobs = 0;
  // Failures of the group while the sequence was in a step in flight, since it last got beyond the point
  // where it was at one of them; how many tokens were known at the last; and whether it may be the cause.
  int32_t num_failures = 0;
  int64_t num_tokens_at_failure = 0;
  bool runs_alone = false;
  bool was_scheduled = false;
  MonotonicTime expires_at = absl::InfiniteDuration();  // ExpiryQueue sets it
  // Until the sequence is scheduled: the one with the same prompt whose prompt it waits for, to fork it.
  std::weak_ptr<Sequence> fork_source;
  // The choices of its request; null where it has but one.
  std::shared_ptr<ChoiceGroup> choices;
  // While it waits, having been preempted with other choices.
  std::shared_ptr<PreemptedTogether> together;
  // The sequence that computes what this one begins with, while it waits for that; and for how many tokens.
  int64_t awaited_id = 0;
  int64_t awaited_tokens = 0;
  std::weak_ptr<Sequence> leader;    // of one of a search's other beams
  bool avoids_prefix_cache = false;  // since its logits were bad on blocks that other sequences computed

  // For the observer; stamped by the engine.
  absl::Time scheduled_time = absl::InfinitePast();
  absl::Time first_token_time = absl::InfinitePast();

  int64_t prompt_len() const { return static_cast<int64_t>(request.prompt.size()); }
  int64_t num_outputs() const { return static_cast<int64_t>(tokens.size()) - prompt_len(); }
  // Known and pending tokens.
  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()) + num_pending; }
  int64_t num_to_compute() const { return num_tokens() - num_computed; }
  // Known tokens that are in the cache once all steps sent are done.
  int64_t num_known_computed() const { return std::min(num_computed, static_cast<int64_t>(tokens.size())); }
  // While it waits: nothing of it is computed again.
  bool keeps_computed() const { return is_suspended || is_swapped; }
  void Charge(int64_t cost) const {
    if (visit != nullptr) visit->Charge(cost);
  }
  bool finished() const { return state == SequenceState::kFinished; }
  // Prompt log-probabilities are still owed: the whole prompt must be computed, no prefix hit.
  bool owes_prompt_logprobs() const {
    return request.sampling->num_prompt_logprobs >= 0 && num_prompt_logprobs < prompt_len();
  }
};

using SequencePtr = std::shared_ptr<Sequence>;

// It has come back, or goes on alone.
inline void LeaveTogether(Sequence* sequence) {
  if (const auto together = std::exchange(sequence->together, nullptr)) --together->num_waiting;
}

// The order of service.
using ServiceKey = std::tuple<int64_t, int64_t, int64_t>;
inline ServiceKey KeyOf(const Sequence& sequence) {
  return {sequence.effective_priority, sequence.service, sequence.id};
}
// Before every key.
inline constexpr ServiceKey kFirstServiceKey = {std::numeric_limits<int64_t>::min(), 0, 0};
// As KeyOf, by another number than the arrival. The shortest first, where it is Scheduler::RankOf.
inline std::tuple<int64_t, int64_t, int64_t, int64_t> PrefillKey(const Sequence& sequence, int64_t rank) {
  return {sequence.effective_priority, sequence.service, rank, sequence.id};
}
// Whether it is served later for another reason than that it came later.
inline bool IsBehind(const Sequence& a, const Sequence& b) {
  return std::pair(a.effective_priority, a.service) > std::pair(b.effective_priority, b.service);
}

}  // namespace somnus
