#pragma once
// A sequence on its way through the scheduler: the tokens, and how many of the tokens are computed. Plain
// state with token arithmetic; owned by the Scheduler, shared with the records of steps in flight. Engine
// loop thread only.
//
// State that only one feature needs is a struct of its own here, kept by the class that the struct names.

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
struct Sequence;

enum class SequenceState { kWaiting, kRunning, kFinished };

// The place in the order of service, kept by WaitingQueue. Under FCFS the priorities stay 0.
struct ServicePlace {
  int64_t effective_priority = 0;  // smaller is served sooner
  int64_t waited_steps = 0;        // since effective_priority last improved; without the wait under way
  int64_t aging_due = 0;           // while waiting: the step at which effective_priority improves next
  // The account of the sequence's user. Null where users have no accounts, and once the sequence has
  // finished.
  std::shared_ptr<UserAccounts::Visit> visit;
  int64_t service = 0;  // of the user, when the sequence was last put in order
};

// Failures of the group while the sequence was in a step in flight, kept by the engine.
struct FailureHistory {
  int32_t num_failures = 0;           // since the sequence last got beyond the point of an earlier failure
  int64_t num_tokens_at_failure = 0;  // tokens that were known at the last failure
  bool runs_alone = false;            // the sequence may be the cause
};

// The blocks that a waiting sequence has, kept by LiveSequences and HostTier. At most one of is_suspended and
// is_swapped is true.
struct HeldBlocks {
  bool is_suspended = false;  // on the device: nothing is computed again
  bool is_kept = false;       // while suspended: the blocks were chosen to outlive a sleep
  bool is_swapped = false;    // in host memory
  int64_t swap_step = 0;      // the step that has swapped the sequence out
};

// The part of a sequence that is about its beam search, kept by Beams. The first sequence of a search stands
// for all of them and has the group; the others know the first sequence.
struct BeamLinks {
  std::shared_ptr<BeamGroup> group;
  int32_t place = 0;  // of the others: from 1 on
  std::weak_ptr<Sequence> leader;
};

// While a sequence waits for a prefix that another sequence computes: which sequence, and how many tokens.
// Kept by Admission.
struct AwaitedPrefix {
  int64_t sequence_id = 0;
  int64_t num_tokens = 0;
};

struct Sequence : ServicePlace, FailureHistory {
  // The members that every step reads of every sequence that decodes come first, to be near in memory; the id
  // is part of the place in the order of service.
  int64_t id = 0;               // in order of arrival
  std::vector<int32_t> tokens;  // the prompt, then the outputs known so far
  int64_t num_computed = 0;     // tokens in the cache once all steps sent are done
  int32_t num_pending = 0;      // tokens that steps in flight will sample, beyond `tokens`
  int32_t slot = -1;            // row of the workers' batch state while running
  SequenceState state = SequenceState::kWaiting;
  int32_t num_adopted = 0;  // tokens that the prefix cache served at the last admission
  int64_t num_charged = 0;  // tokens of the prompt that were charged to the user, or that cost nothing
  BeamLinks beam;
  std::shared_ptr<DraftState> draft;      // of speculative decoding; null: there has been none
  std::shared_ptr<TokenMatcher> matcher;  // of request.constraint, kept by Constraints; null: not needed yet
  ChoiceLinks choice;
  EngineRequest request;

  int64_t arrival_step = 0;  // the number of the scheduler's next step at the arrival
  HeldBlocks held;
  AwaitedPrefix awaited;
  int32_t num_cached = 0;  // prompt tokens that the prefix cache served at the first admission
  // Positions whose prompt log-probabilities were delivered, position 0 included: recomputation does not
  // deliver these again.
  int32_t num_prompt_logprobs = 0;
  int32_t num_preemptions = 0;
  int32_t num_untold_steps = 0;  // that computed the sequence since the request's trail was told
  bool was_scheduled = false;
  bool avoids_prefix_cache = false;  // since its logits were bad on blocks that other sequences computed
  MonotonicTime expires_at = absl::InfiniteDuration();  // ExpiryQueue sets this

  // For the observer; stamped by the engine.
  RequestMoments moments;

  int64_t prompt_len() const { return static_cast<int64_t>(request.prompt.size()); }
  int64_t num_outputs() const { return static_cast<int64_t>(tokens.size()) - prompt_len(); }
  // Known and pending tokens.
  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()) + num_pending; }
  int64_t num_to_compute() const { return num_tokens() - num_computed; }
  // Known tokens that are in the cache once all steps sent are done.
  int64_t num_known_computed() const { return std::min(num_computed, static_cast<int64_t>(tokens.size())); }
  // Of a waiting sequence: nothing is computed again.
  bool keeps_computed() const { return held.is_suspended || held.is_swapped; }
  // Charges the user, where users have accounts.
  void Charge(int64_t cost) const {
    if (visit != nullptr) visit->Charge(cost);
  }
  // Charges the prompt tokens that steps compute, once: tokens that are computed again cost nothing.
  void ChargePrompt() {
    const int64_t num_tokens = std::min(num_computed, prompt_len());
    if (num_tokens <= num_charged) return;
    Charge(UserAccounts::kPromptWeight * (num_tokens - num_charged));
    num_charged = num_tokens;
  }
  bool finished() const { return state == SequenceState::kFinished; }
  // Prompt log-probabilities are still owed: the whole prompt must be computed, no prefix hit.
  bool owes_prompt_logprobs() const {
    return request.sampling->num_prompt_logprobs >= 0 && num_prompt_logprobs < prompt_len();
  }
  bool pools() const { return request.pooling != Pooling::kNone; }
  // The workers add up the rows of the prompt's tokens, or keep the first one, in the sequence's slot: the
  // whole prompt must be computed in the same slot, without a prefix hit, and is computed again after a
  // preemption.
  bool pools_early_rows() const {
    return request.pooling == Pooling::kMean || request.pooling == Pooling::kCls;
  }
  bool uses_prefix_cache() const {
    return !owes_prompt_logprobs() && !avoids_prefix_cache && !pools_early_rows();
  }
  // Whether the last of `num_new` tokens that have become known or computed may have filled a block.
  bool MayHaveFilledBlock(int64_t num_new, int32_t block_size) const {
    return num_new != 1 || num_known_computed() % block_size == 0;
  }
};

using SequencePtr = std::shared_ptr<Sequence>;

// The order of service.
using ServiceKey = std::tuple<int64_t, int64_t, int64_t>;
inline ServiceKey KeyOf(const Sequence& sequence) {
  return {sequence.effective_priority, sequence.service, sequence.id};
}
// Before every key.
inline constexpr ServiceKey kFirstServiceKey = {std::numeric_limits<int64_t>::min(), 0, 0};
// Whether `a` is served later for another reason than a later arrival.
inline bool IsBehind(const Sequence& a, const Sequence& b) {
  return std::pair(a.effective_priority, a.service) > std::pair(b.effective_priority, b.service);
}

}  // namespace somnus
