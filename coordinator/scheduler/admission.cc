// The part of the Scheduler that decides which waiting sequences start to run.

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "base/check.h"
#include "coordinator/scheduler/beam_group.h"
#include "coordinator/scheduler/prefix_lookups.h"
#include "coordinator/scheduler/scheduler.h"

namespace somnus {
namespace {

// How many prompts one step passes over, long ones to find one that is not long, and those that wait for a
// prefix. It bounds the search.
constexpr int kMaxSkipped = 64;

}  // namespace

bool Scheduler::UsesPrefixCache(const Sequence& sequence) const {
  return !sequence.owes_prompt_logprobs() && !sequence.avoids_prefix_cache;
}

void Scheduler::ScheduleWaiting(StepBuilder* builder) {
  int skipped = 0;
  size_t num_reserved = 0;  // slots for forks of this step
  builder->passed.clear();
  std::shared_ptr<PreemptedTogether> coming_back;
  for (auto it = waiting_.begin();
       it != waiting_.end() && builder->budget > 0 && free_slots_.size() > num_reserved;) {
    if (waiting_.Refresh(&it)) continue;
    if (skipped >= kMaxSkipped && !waiting_.IsBrief(it->first)) {
      it = waiting_.NextBrief(it->first);
      continue;
    }
    const auto [key, sequence] = *it;
    ++it;
    if (const SequencePtr source = ForkSource(*sequence)) {
      num_reserved += source->num_pending > 0 ? 1 : 0;
      continue;
    }
    // It was preempted with a token still in flight; it will be sent whole, so all its tokens must be known
    // first.
    if (HasPending(*sequence) || IsKeptApart(*sequence)) return;
    const bool waits_for_choices = coming_back != nullptr && coming_back->num_waiting > 0;
    if (waits_for_choices && sequence->together != coming_back) return;
    if (!MayComeBack(sequence, free_slots_.size() - num_reserved)) return;
    if (sequence->together != nullptr) coming_back = sequence->together;
    if (sequence->is_swapped && !MaySwapIn(WaitingTogether(sequence))) return;
    if (skipped < kMaxSkipped && AwaitsPrefix(sequence.get(), *builder)) {
      ++skipped;
      continue;
    }
    const Admission admission = CheckPartialPrefills(*sequence, builder);
    if (admission == Admission::kSkip) {
      ++skipped;
      continue;
    }
    if (admission != Admission::kOk || !HasBytes(*sequence, *builder) || !Admit(sequence, builder)) return;
    AddPrefill(sequence, builder);
    it = waiting_.After(key);
  }
}

bool Scheduler::IsKeptApart(const Sequence& sequence) const {
  if (running_.empty()) return false;
  return sequence.runs_alone || running_.begin()->second->runs_alone;
}

bool Scheduler::AwaitsPrefix(Sequence* sequence, const StepBuilder& builder) {
  if (!options_.blocks.enable_prefix_caching || !UsesPrefixCache(*sequence) || sequence->keeps_computed())
    return false;
  const Sequence* source = nullptr;
  int64_t shared = 0;
  for (const PrefillEntry& prefill : builder.prefills) {
    const Sequence& other = *prefill.sequence;
    const bool is_less_urgent = other.effective_priority > sequence->effective_priority;
    if (is_less_urgent || other.request.cache_salt != sequence->request.cache_salt) continue;
    if (other.id == sequence->awaited_id)
      return builder.step.entries[prefill.entry].start < sequence->awaited_tokens;
    const int64_t common = CommonPrefix(*sequence, other);
    if (common > shared) std::tie(source, shared) = std::tuple(&other, common);
  }
  // The last token is never adopted, since it gives the logits.
  const int64_t most = std::min(shared, sequence->num_tokens() - 1);
  const int64_t adoptable = most - most % options_.blocks.block_size;
  if (adoptable == 0) return false;
  const int64_t cached = blocks_.CountCached(sequence->id, sequence->tokens, sequence->request.cache_salt);
  if (cached >= adoptable) return false;
  sequence->awaited_id = source->id;
  sequence->awaited_tokens = adoptable;
  return true;
}

Scheduler::Admission Scheduler::CheckPartialPrefills(const Sequence& sequence, StepBuilder* builder) {
  int64_t num_tokens = sequence.num_to_compute();
  // A prompt with no more tokens than this is completed at once.
  const int64_t whole = std::min(long_prefill_tokens_, builder->budget);
  if (num_tokens <= whole) return Admission::kOk;
  if (UsesPrefixCache(sequence) && !sequence.keeps_computed())
    num_tokens -= blocks_.CountCached(sequence.id, sequence.tokens, sequence.request.cache_salt);
  if (num_tokens <= whole) return Admission::kOk;
  const bool is_long = num_tokens > long_prefill_tokens_;
  const LongPrompt own = {&sequence, RankOf(sequence, num_tokens)};
  int32_t num_partial = 0, num_long = 0;
  const auto count = [&](const Sequence& other, bool other_is_long, int64_t rank) {
    if (IsBehind(other, sequence)) return;
    ++num_partial;
    num_long += other_is_long && !Overtakes(own, {&other, rank}) ? 1 : 0;
  };
  for (const PrefillEntry& prefill : builder->prefills) {
    if (builder->step.entries[prefill.entry].samples) continue;  // it is completed
    count(*prefill.sequence, prefill.is_long, prefill.rank);
  }
  for (const SequencePtr& other : builder->overtakers)
    count(*other, /*other_is_long=*/true, RankOf(*other, other->num_to_compute()));
  const bool is_full = num_partial >= options_.max_num_partial_prefills;
  if (!is_long) return is_full ? Admission::kStop : Admission::kOk;
  const bool overtakes_all = std::all_of(builder->passed.begin(), builder->passed.end(),
                                         [&](const LongPrompt& passed) { return Overtakes(own, passed); });
  if (!is_full && overtakes_all && num_long < options_.max_long_partial_prefills) return Admission::kOk;
  builder->passed.push_back(own);
  return Admission::kSkip;
}

bool Scheduler::Overtakes(const LongPrompt& a, const LongPrompt& b) {
  return a.rank < b.rank && !IsBehind(*a.sequence, *b.sequence);
}

// Whether the step's messages have room for the sequence. They always have for the first new one, whose size
// Check bounds.
bool Scheduler::HasBytes(const Sequence& sequence, const StepBuilder& builder) const {
  const bool is_first = builder.plan.request.new_sequences_size() == 0;
  if (!is_first && builder.writer.Cost(sequence, options_.blocks.block_size) > builder.request_bytes)
    return false;
  return Chunk(sequence, 1, builder) > 0;
}

// Returns how many tokens are in the cache already; -1 when there are too few blocks.
int64_t Scheduler::TakeBlocks(const SequencePtr& sequence) {
  if (sequence->is_swapped && !SwapIn(sequence)) return -1;
  if (!sequence->is_suspended) {
    return blocks_.Allocate(sequence->id, sequence->tokens, sequence->request.cache_salt,
                            UsesPrefixCache(*sequence), IgnoresWatermark(*sequence));
  }
  std::vector<int32_t> new_blocks;  // they go with the others
  const bool has_room =
      blocks_.Grow(sequence->id, static_cast<int64_t>(sequence->tokens.size()), &new_blocks);
  return has_room ? sequence->num_computed : -1;
}

bool Scheduler::Admit(const SequencePtr& sequence, StepBuilder* builder) {
  if (free_slots_.size() < static_cast<size_t>(NumSlots(*sequence))) return false;
  const auto take_blocks = [&] {
    SetReadsHost(*sequence);
    return sequence->beams == nullptr ? TakeBlocks(sequence) : TakeBeamBlocks(sequence);
  };
  int64_t computed = take_blocks();
  while (computed < 0 && PreemptSuspendedBehind(KeyOf(*sequence), *sequence)) {
    // No step swaps both ways: it comes back in the next one.
    if (sequence->is_swapped && !swap_outs_.empty()) return false;
    computed = take_blocks();
  }
  if (computed < 0) return false;
  TakeHostHits(*sequence);
  if (!sequence->keeps_computed()) sequence->num_adopted = static_cast<int32_t>(computed);
  StartRunning(sequence, computed);
  if (!sequence->was_scheduled) {
    sequence->num_cached = static_cast<int32_t>(computed);
    stats_.prefix_cache_queries += sequence->prompt_len();
    stats_.prefix_cache_hits += computed;
    CountMisses(*sequence, options_.blocks, computed, &stats_.prefix_cache_misses);
    NoteScheduled(sequence, &builder->plan);
  }
  builder->request_bytes -= builder->writer.Cost(*sequence, options_.blocks.block_size);
  builder->writer.Add(*sequence, blocks_.Table(sequence->id));
  return true;
}

void Scheduler::StartRunning(const SequencePtr& sequence, int64_t num_computed) {
  waiting_.Erase(sequence.get(), next_step_id_);
  if (sequence->visit != nullptr) sequence->service = sequence->visit->service();
  running_.emplace(KeyOf(*sequence), sequence);
  sequence->state = SequenceState::kRunning;
  num_suspended_ -= sequence->is_suspended ? 1 : 0;
  sequence->is_suspended = false;
  LeaveTogether(sequence.get());
  sequence->num_computed = num_computed;
  sequence->num_charged = std::max(sequence->num_charged, num_computed);
  sequence->slot = free_slots_.back();
  free_slots_.pop_back();
  if (sequence->beams != nullptr) TakeBeamSlots(sequence);
  num_preempted_ -= sequence->was_scheduled ? 1 : 0;
}

void Scheduler::NoteScheduled(const SequencePtr& sequence, StepPlan* plan) {
  sequence->was_scheduled = true;
  expiries_.Insert(sequence);
  for (const std::weak_ptr<Sequence>& fork : sequence->forks) {
    const SequencePtr waiting = fork.lock();
    if (waiting != nullptr && !waiting->finished()) NoteForkOnItsWay(waiting);
  }
  stats_.prompt_tokens += sequence->prompt_len();
  plan->first_scheduled.push_back(sequence);
}

// Of the sequence, or of all that come back with it.
int32_t Scheduler::BlocksMissing(const SequencePtr& sequence) {
  if (sequence->beams != nullptr && !sequence->is_swapped)
    return BeamBlocksMissingToStart(*sequence, UsesPrefixCache(*sequence), &blocks_);
  if (sequence->is_suspended && sequence->together == nullptr)
    return blocks_.BlocksMissingToGrow(sequence->id, static_cast<int64_t>(sequence->tokens.size()));
  return RoomFor(WaitingTogether(sequence), /*ignore_watermark=*/false).missing;
}

void Scheduler::DisplaceForFirstWaiting() {
  if (waiting_.empty() || running_.empty()) return;
  const SequencePtr first = waiting_.begin()->second;
  const auto is_less_urgent = [&](const SequencePtr& running) {
    return running->effective_priority > first->request.priority;
  };
  const std::vector<SequencePtr> together = WaitingTogether(first);
  if (std::any_of(together.begin(), together.end(),
                  [](const SequencePtr& one) { return HasPending(*one); }) ||
      (first->is_swapped && !MaySwapIn(together)) || ForkSource(*first) != nullptr ||
      !is_less_urgent(running_.rbegin()->second))
    return;
  const int32_t missing = BlocksMissing(first);
  size_t slots_wanted = 0, num_slots = free_slots_.size();
  for (const SequencePtr& one : together) slots_wanted += static_cast<size_t>(NumSlots(*one));
  BlockManager::FreedBlocks freed;
  const auto add_freed = [&](const Sequence& sequence) {
    for (const Sequence* one : WithBlocks(sequence, blocks_)) freed.Add(blocks_, one->id);
  };
  for (auto it = std::next(waiting_.begin()); num_suspended_ > 0 && it != waiting_.end(); ++it) {
    const bool comes_along = first->together != nullptr && it->second->together == first->together;
    if (it->second->is_suspended && !comes_along) add_freed(*it->second);  // Admit takes them
  }
  std::vector<std::vector<SequencePtr>> victims;
  absl::flat_hash_set<const Sequence*> are_victims;
  const auto has_room = [&] { return freed.count() >= missing && num_slots >= slots_wanted; };
  for (auto it = running_.rbegin(); it != running_.rend() && !has_room(); ++it) {
    if (are_victims.contains(it->second.get())) continue;
    victims.push_back(RunningChoices(it->second));
    if (!std::all_of(victims.back().begin(), victims.back().end(), is_less_urgent)) return;
    for (const SequencePtr& one : victims.back()) {
      are_victims.insert(one.get());
      add_freed(*one);
      num_slots += static_cast<size_t>(NumSlots(*one));
    }
  }
  if (!has_room()) return;
  for (const std::vector<SequencePtr>& all : victims) {
    Preempt(all, PreemptionCause::kPriority);
    KeepTogether(all);
  }
}

}  // namespace somnus
