#include "coordinator/scheduler/admission.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "coordinator/scheduler/beam_group.h"
#include "coordinator/scheduler/prefix_lookups.h"
#include "coordinator/scheduler/step_size.h"

namespace somnus {
namespace {

// How many prompts one step passes over: long prompts, to find one that is not long, and prompts that wait
// for a prefix. The number bounds the search.
constexpr int kMaxSkipped = 64;

bool AnyHasPending(const std::vector<SequencePtr>& all) {
  return std::any_of(all.begin(), all.end(), [](const SequencePtr& one) { return HasPending(*one); });
}

}  // namespace

void Admission::Run(StepBuilder* builder) {
  Walk walk = {.builder = builder};
  WaitingQueue& waiting = sequences_.waiting();
  for (auto it = waiting.begin();
       it != waiting.end() && builder->budget > 0 && slots_.num_free() > walk.num_reserved;) {
    if (waiting.Refresh(&it)) continue;
    if (walk.skipped >= kMaxSkipped && !waiting.IsBrief(it->first)) {
      it = waiting.NextBrief(it->first);
      continue;
    }
    const auto [key, sequence] = *it;
    ++it;
    const Verdict verdict = CheckOthers(sequence, &walk);
    if (verdict == Verdict::kSkip) continue;
    if (verdict == Verdict::kStop || !builder->HasBytes(*sequence) || !Admit(sequence, builder)) return;
    builder->AddPrefill(sequence);
    it = waiting.After(key);
  }
}

Admission::Verdict Admission::CheckOthers(const SequencePtr& sequence, Walk* walk) {
  if (const SequencePtr source = Choices::ForkSource(*sequence)) {
    walk->num_reserved += source->num_pending > 0 ? 1 : 0;
    return Verdict::kSkip;
  }
  // A sequence that was preempted with a token still in flight is sent whole, so that all its tokens must be
  // known first.
  if (HasPending(*sequence) || IsKeptApart(*sequence)) return Verdict::kStop;
  if (AwaitsAdapter(*sequence, walk->adapter_waits)) {
    walk->adapter_waits = true;
    ++walk->skipped;
    return Verdict::kSkip;
  }
  const std::shared_ptr<PreemptedTogether>& together = sequence->choice.together;
  const bool waits_for_choices = walk->coming_back != nullptr && walk->coming_back->num_waiting > 0;
  if (waits_for_choices && together != walk->coming_back) return Verdict::kStop;
  if (!MayComeBack(sequence, slots_.num_free() - walk->num_reserved)) return Verdict::kStop;
  if (together != nullptr) walk->coming_back = together;
  if (sequence->held.is_swapped && !host_tier_.MayRun(Choices::WaitingTogether(sequence)))
    return Verdict::kStop;
  const Verdict verdict = walk->skipped < kMaxSkipped && AwaitsPrefix(sequence.get(), *walk->builder)
                              ? Verdict::kSkip
                              : CheckPartialPrefills(*sequence, walk);
  walk->skipped += verdict == Verdict::kSkip ? 1 : 0;
  return verdict;
}

bool Admission::IsKeptApart(const Sequence& sequence) const {
  const LiveSequences::Running& running = sequences_.running();
  return !running.empty() && (sequence.runs_alone || running.begin()->second->runs_alone);
}

bool Admission::AwaitsAdapter(const Sequence& sequence, bool another_waits) const {
  if (sequence.request.adapter == nullptr) return false;
  if (another_waits) return true;
  absl::flat_hash_set<uint64_t> adapters = {sequence.request.adapter->id};
  for (const auto& [key, running] : sequences_.running()) {
    if (running->request.adapter != nullptr) adapters.insert(running->request.adapter->id);
  }
  return adapters.size() > static_cast<size_t>(options_.max_loras);
}

bool Admission::AwaitsPrefix(Sequence* sequence, const StepBuilder& builder) {
  if (!options_.blocks.enable_prefix_caching || !sequence->uses_prefix_cache() || sequence->keeps_computed())
    return false;
  const Sequence* source = nullptr;
  int64_t shared = 0;
  for (const PrefillEntry& prefill : builder.prefills) {
    const Sequence& other = *prefill.sequence;
    const bool is_less_urgent = other.effective_priority > sequence->effective_priority;
    if (is_less_urgent || other.request.cache_salt != sequence->request.cache_salt) continue;
    if (other.id == sequence->awaited.sequence_id)
      return builder.step.entries[prefill.entry].start < sequence->awaited.num_tokens;
    const int64_t common = CommonPrefix(*sequence, other);
    if (common > shared) std::tie(source, shared) = std::tuple(&other, common);
  }
  // The last token is never adopted, since its computation gives the logits.
  const int64_t most = std::min(shared, sequence->num_tokens() - 1);
  const int64_t adoptable = most - most % options_.blocks.block_size;
  if (adoptable == 0) return false;
  const int64_t cached =
      blocks_.cache().CountCached(sequence->id, sequence->tokens, sequence->request.cache_salt);
  if (cached >= adoptable) return false;
  sequence->awaited = {source->id, adoptable};
  return true;
}

int64_t Admission::NumToCompute(const Sequence& sequence) {
  const int64_t num_tokens = sequence.num_to_compute();
  if (!sequence.uses_prefix_cache() || sequence.keeps_computed()) return num_tokens;
  return num_tokens - blocks_.cache().CountCached(sequence.id, sequence.tokens, sequence.request.cache_salt);
}

Admission::Verdict Admission::CheckPartialPrefills(const Sequence& sequence, Walk* walk) {
  const StepBuilder& builder = *walk->builder;
  // A prompt with no more tokens than this is completed at once.
  const int64_t whole = std::min(long_prompts_.threshold(), builder.budget);
  if (sequence.num_to_compute() <= whole) return Verdict::kOk;
  const int64_t num_tokens = NumToCompute(sequence);
  if (num_tokens <= whole) return Verdict::kOk;
  const LongPrompt own = {&sequence, long_prompts_.RankOf(sequence, num_tokens)};
  int32_t num_partial = 0, num_long = 0;
  const auto count = [&](const Sequence& other, bool other_is_long, int64_t rank) {
    if (IsBehind(other, sequence)) return;
    ++num_partial;
    num_long += other_is_long && !LongPrompts::Overtakes(own, {&other, rank}) ? 1 : 0;
  };
  for (const PrefillEntry& prefill : builder.prefills) {
    // A prompt that samples is completed.
    if (!builder.Samples(prefill)) count(*prefill.sequence, prefill.is_long, prefill.rank);
  }
  for (const SequencePtr& other : builder.overtakers)
    count(*other, /*other_is_long=*/true, long_prompts_.RankOf(*other, other->num_to_compute()));
  const bool is_full = num_partial >= options_.max_num_partial_prefills;
  if (!long_prompts_.IsLong(num_tokens)) return is_full ? Verdict::kStop : Verdict::kOk;
  const bool overtakes_all =
      std::all_of(walk->passed.begin(), walk->passed.end(),
                  [&](const LongPrompt& passed) { return LongPrompts::Overtakes(own, passed); });
  if (!is_full && overtakes_all && num_long < options_.max_long_partial_prefills) return Verdict::kOk;
  walk->passed.push_back(own);
  return Verdict::kSkip;
}

// Choices that can never be in the cache together, or that have nothing to wait for, go one by one from now
// on.
bool Admission::MayComeBack(const SequencePtr& sequence, size_t num_slots) {
  const bool nothing_runs = sequences_.running().empty();
  // Where nothing runs, choices that have begun to come back must not wait for room that there may never be.
  if (sequence->choice.together == nullptr || (sequence->choice.together->comes_back && !nothing_runs))
    return true;
  const std::vector<SequencePtr> all = Choices::WaitingTogether(sequence);
  const auto is_swapped = [](const SequencePtr& one) { return one->held.is_swapped; };
  const auto runs_alone = [](const SequencePtr& one) { return one->runs_alone; };
  if (AnyHasPending(all)) return false;
  if (std::any_of(all.begin(), all.end(), is_swapped) && !host_tier_.MayRun(all)) return false;
  SwappedSequences::Room room = RoomFor(all, /*ignore_watermark=*/nothing_runs);
  while (room.missing > 0 && sequences_.PreemptSuspendedBehind(KeyOf(*sequence), *sequence))
    room = RoomFor(all, /*ignore_watermark=*/nothing_runs);
  const bool apart = std::any_of(all.begin(), all.end(), runs_alone);
  if (room.missing <= 0 && all.size() <= num_slots && !apart) {
    sequence->choice.together->comes_back = true;
    sequence->choice.together->ignores_watermark = nothing_runs;
    return true;
  }
  if (!apart && !nothing_runs && room.total <= blocks_.pool().num_total()) return false;
  for (const SequencePtr& one : all) Choices::LeaveTogether(one.get());
  return true;
}

bool Admission::IgnoresWatermark(const Sequence& sequence) const {
  const std::shared_ptr<PreemptedTogether>& together = sequence.choice.together;
  return sequences_.running().empty() || (together != nullptr && together->ignores_watermark);
}

int64_t Admission::TakeBlocks(const SequencePtr& sequence) {
  host_tier_.SetReadsCache(*sequence);
  const bool is_group = sequence->beam.group != nullptr;
  if (is_group) beams_.MakeOthers(sequence, sequences_.next_id());
  if (sequence->held.is_swapped &&
      !sequences_.SwapIn(Choices::WaitingTogether(sequence), IgnoresWatermark(*sequence)))
    return -1;
  if (is_group) return beams_.TakeBlocks(sequence, /*ignore_watermark=*/sequences_.running().empty());
  if (!sequence->held.is_suspended) {
    return blocks_.Allocate(sequence->id, sequence->tokens, sequence->request.cache_salt,
                            sequence->uses_prefix_cache(), IgnoresWatermark(*sequence));
  }
  const auto num_tokens = static_cast<int64_t>(sequence->tokens.size());
  if (blocks_.BlocksMissingForStep(sequence->id, num_tokens) > 0) return -1;
  std::vector<int32_t> new_blocks;  // sent with the whole table
  blocks_.GrowForStep(sequence->id, num_tokens, &new_blocks);
  return sequence->num_computed;
}

bool Admission::Admit(const SequencePtr& sequence, StepBuilder* builder) {
  if (slots_.num_free() < static_cast<size_t>(NumSlots(*sequence))) return false;
  int64_t computed = TakeBlocks(sequence);
  while (computed < 0 && sequences_.PreemptSuspendedBehind(KeyOf(*sequence), *sequence)) {
    // No step swaps both ways: the sequence comes back in the next step.
    if (sequence->held.is_swapped && host_tier_.swaps_out()) return false;
    computed = TakeBlocks(sequence);
  }
  if (computed < 0) return false;
  host_tier_.TakeHits(*sequence, computed);
  if (!sequence->keeps_computed()) sequence->num_adopted = static_cast<int32_t>(computed);
  sequences_.Start(sequence, computed);
  if (!sequence->was_scheduled) {
    sequence->num_cached = static_cast<int32_t>(computed);
    stats_.prefix_cache_queries += sequence->prompt_len();
    stats_.prefix_cache_hits += computed;
    CountMisses(*sequence, options_.blocks, computed, &stats_.prefix_cache_misses);
    NoteScheduled(sequence, &builder->plan);
  }
  builder->SendWhole(*sequence, blocks_.Table(sequence->id));
  return true;
}

void Admission::NoteScheduled(const SequencePtr& sequence, StepPlan* plan) {
  sequences_.NoteScheduled(sequence);
  stats_.prompt_tokens += sequence->prompt_len();
  plan->first_scheduled.push_back(sequence);
}

void Admission::BeginForks(StepBuilder* builder) {
  const size_t num_entries = builder->step.entries.size();
  for (size_t i = 0; i < num_entries; ++i) {
    if (!builder->step.entries[i].has_forks) continue;
    const SequencePtr source = builder->step.entries[i].sequence;
    bool has_room = true;
    for (const SequencePtr& sequence : Choices::TakeForks(source.get())) {
      // A fork without room is admitted later, as any other sequence, with the prompt's blocks in the prefix
      // cache.
      has_room = has_room && Fork(*source, sequence, builder);
    }
  }
}

bool Admission::Fork(const Sequence& source, const SequencePtr& sequence, StepBuilder* builder) {
  const int64_t bytes = SequenceForkBytes(source.num_computed, options_.blocks.block_size);
  if (slots_.num_free() == 0 || bytes > builder->request_bytes || IsKeptApart(*sequence)) return false;
  if (!blocks_.sharing().ForkAt(source.id, sequence->id, source.num_computed, copies_.mutable_copies()))
    return false;
  builder->request_bytes -= bytes;
  blocks_.cache().Withdraw(sequence->id);
  sequences_.Start(sequence, source.num_computed);
  sequence->num_adopted = static_cast<int32_t>(source.num_computed);
  stats_.forked_prompt_tokens += std::min(source.num_computed, sequence->prompt_len());
  NoteScheduled(sequence, &builder->plan);
  ++stats_.num_forks;

  v1::SequenceFork* message = builder->plan.request.add_forks();
  message->set_slot(sequence->slot);
  message->set_source_slot(source.slot);
  message->set_seed(sequence->request.seed);
  const std::vector<int32_t> blocks = blocks_.Table(sequence->id);
  message->mutable_block_ids()->Add(blocks.begin(), blocks.end());

  ScheduledEntry entry;
  entry.sequence = sequence;
  entry.slot = sequence->slot;
  entry.start = sequence->num_computed;
  entry.samples = entry.adopted = true;
  builder->step.entries.push_back(std::move(entry));
  ++sequence->num_pending;
  return true;
}

SwappedSequences::Room Admission::RoomFor(const std::vector<SequencePtr>& all, bool ignore_watermark) {
  std::vector<SwappedSequences::Returning> returning;
  const Sequence* first = nullptr;  // the first sequence that is computed again
  for (const SequencePtr& one : all) {
    if (one->beam.group != nullptr) {
      for (const Sequence* part : WithHostBlocks(*one, blocks_))
        returning.push_back({part->id, part->tokens, one->request.cache_salt, false, /*whole=*/true});
      continue;
    }
    SwappedSequences::Returning& next = returning.emplace_back(
        SwappedSequences::Returning{one->id, one->tokens, one->request.cache_salt, one->uses_prefix_cache()});
    if (one->keeps_computed() || !next.use_cache || !options_.blocks.enable_prefix_caching) continue;
    if (first != nullptr) next.num_shared = CommonPrefix(*first, *one);
    if (first == nullptr) first = one.get();
  }
  return blocks_.swapped().RoomFor(returning, ignore_watermark);
}

int32_t Admission::BlocksMissing(const SequencePtr& sequence) {
  if (sequence->beam.group != nullptr && !sequence->held.is_swapped)
    return BeamBlocksMissingToStart(*sequence, sequence->uses_prefix_cache(), &blocks_);
  if (sequence->held.is_suspended && sequence->choice.together == nullptr)
    return blocks_.BlocksMissingForStep(sequence->id, static_cast<int64_t>(sequence->tokens.size()));
  return RoomFor(Choices::WaitingTogether(sequence), /*ignore_watermark=*/false).missing;
}

void Admission::DisplaceForFirstWaiting() {
  const LiveSequences::Running& running = sequences_.running();
  const WaitingQueue& waiting = sequences_.waiting();
  if (waiting.empty() || running.empty()) return;
  const SequencePtr first = waiting.begin()->second;
  const auto is_less_urgent = [&](const SequencePtr& one) {
    return one->effective_priority > first->request.priority;
  };
  const std::vector<SequencePtr> together = Choices::WaitingTogether(first);
  if (AnyHasPending(together) || (first->held.is_swapped && !host_tier_.MayRun(together)) ||
      Choices::ForkSource(*first) != nullptr || AwaitsAdapter(*first, false) ||
      !is_less_urgent(running.rbegin()->second))
    return;
  const int32_t missing = BlocksMissing(first);
  size_t slots_wanted = 0, num_slots = slots_.num_free();
  for (const SequencePtr& one : together) slots_wanted += static_cast<size_t>(NumSlots(*one));
  BlockManager::FreedBlocks freed;
  const auto add_freed = [&](const Sequence& sequence) {
    for (const Sequence* one : WithBlocks(sequence, blocks_)) freed.Add(blocks_, one->id);
  };
  for (auto it = std::next(waiting.begin()); sequences_.num_suspended() > 0 && it != waiting.end(); ++it) {
    const bool comes_along =
        first->choice.together != nullptr && it->second->choice.together == first->choice.together;
    if (it->second->held.is_suspended && !comes_along) add_freed(*it->second);  // Admit takes these blocks
  }
  std::vector<std::vector<SequencePtr>> victims;
  absl::flat_hash_set<const Sequence*> are_victims;
  const auto has_room = [&] { return freed.count() >= missing && num_slots >= slots_wanted; };
  for (auto it = running.rbegin(); it != running.rend() && !has_room(); ++it) {
    if (are_victims.contains(it->second.get())) continue;
    victims.push_back(Choices::Running(it->second));
    if (!std::all_of(victims.back().begin(), victims.back().end(), is_less_urgent)) return;
    for (const SequencePtr& one : victims.back()) {
      are_victims.insert(one.get());
      add_freed(*one);
      num_slots += static_cast<size_t>(NumSlots(*one));
    }
  }
  if (!has_room()) return;
  for (const std::vector<SequencePtr>& all : victims) {
    sequences_.Preempt(all, PreemptionCause::kPriority);
    Choices::KeepTogether(all);
  }
}

int64_t Admission::BacklogOf(const Sequence& sequence) {
  const int64_t own = std::max<int64_t>(NumToCompute(sequence), 1);
  const bool is_long = long_prompts_.IsLong(own);
  const LongPrompt own_prompt = {&sequence, long_prompts_.RankOf(sequence, own)};
  int64_t before = own, beside = 0;
  const auto add = [&](const Sequence& other) {
    const int64_t num_tokens = other.num_to_compute();
    if (num_tokens <= 1) return;
    const LongPrompt other_prompt = {&other, long_prompts_.RankOf(other, num_tokens)};
    const bool is_overtaken =
        long_prompts_.IsLong(num_tokens) && (!is_long || LongPrompts::Overtakes(own_prompt, other_prompt));
    (is_overtaken ? beside : before) += num_tokens;
  };
  for (const auto& [key, other] : sequences_.running()) add(*other);
  const ServiceKey own_key = KeyOf(sequence);
  const WaitingQueue& waiting = sequences_.waiting();
  for (auto it = waiting.begin(); it != waiting.end() && it->first < own_key; ++it) {
    if (Choices::ForkSource(*it->second) == nullptr) add(*it->second);
  }
  // Long prompts do not hold up a prompt that goes ahead of them: each gets at most its threshold of a step.
  const int64_t budget = options_.max_num_batched_tokens;
  const int64_t of_long = options_.max_long_partial_prefills * long_prompts_.threshold();
  if (of_long >= budget) return before + beside;
  return before + std::min(beside, before * of_long / (budget - of_long));
}

}  // namespace somnus
