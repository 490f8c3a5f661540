// The half of the Scheduler that makes steps; admission is in admission.cc.

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "coordinator/scheduler/scheduler.h"
#include "coordinator/scheduler/step_size.h"

namespace somnus {

StepPlan Scheduler::Schedule() {
  StepPlan plan = MakeStep();
  const bool is_idle = running_.empty() && in_flight_.empty() && !waiting_.empty();
  int32_t left = is_idle ? blocks_.pins().size() : 0;
  while (plan.empty() && (left = blocks_.PinsGiveWay(left)) >= 0) plan = MakeStep();
  return plan;
}

StepPlan Scheduler::MakeStep() {
  waiting_.Age(next_step_id_);
  if (options_.accounts != nullptr) OrderByService();
  if (options_.policy == SchedulingPolicy::kPriority) DisplaceForFirstWaiting();
  StepBuilder builder;
  builder.plan.request.Swap(&spare_request_);
  builder.step.entries.swap(spare_entries_);
  builder.step.entries.reserve(running_.size());
  builder.budget = options_.max_num_batched_tokens;
  builder.request_bytes = builder.reply_bytes = options_.step_bytes;
  const bool preempted = ScheduleDecodes(&builder);
  ScheduleRunningPrefills(&builder);
  if (!preempted) ScheduleWaiting(&builder);
  ScheduleOvertakers(&builder);
  SpendRest(&builder);
  // A prompt that the rest completed makes room for the next one.
  if (!preempted) ScheduleWaiting(&builder);
  SpendRest(&builder);
  // A step that swaps is made in any case, so that blocks never wait for their contents.
  if (builder.plan.empty() && swap_outs_.empty() && swap_ins_.empty()) return std::move(builder.plan);
  builder.plan.num_tokens = static_cast<int32_t>(options_.max_num_batched_tokens - builder.budget);
  // Blocks become known only now: no sequence of this step may adopt blocks that the step itself fills.
  for (const ScheduledEntry& entry : builder.step.entries) {
    if (entry.fills_blocks) Commit(*entry.sequence);
  }
  StoreCached(&builder);
  builder.step.swapped_out = SendSwaps(&builder.plan.request);
  SendCopies(&builder.plan.request);
  ForkSequences(&builder);  // once the prefix cache knows the sources' blocks: they need not be hashed again
  speculation_.SetHasRoom(!preempted);
  const bool has_drafts = options_.speculation.num_speculative_tokens > 0 && !preempted;
  if (has_drafts) AddDraftTokens(&builder);
  if (has_drafts) AskForProposals(&builder);
  builder.plan.request.mutable_freed_slots()->Add(freed_slots_.begin(), freed_slots_.end());
  freed_slots_.clear();
  builder.step.step_id = next_step_id_++;
  builder.plan.request.set_step_id(builder.step.step_id);
  in_flight_.push_back(std::move(builder.step));
  return std::move(builder.plan);
}

void Scheduler::Reuse(v1::StepRequest sent) {
  // Tokens and block tables that are sent whole take memory that hardly a step needs.
  if (sent.new_sequences_size() + sent.forks_size() + sent.branches_size() > 0) return;
  sent.Clear();
  spare_request_ = std::move(sent);
}

// `num_new`: by how many tokens what is known of the sequence, or what is computed, has grown since the last
// Commit.
bool Scheduler::FillsBlocks(const Sequence& sequence, int64_t num_new) const {
  return num_new != 1 || sequence.num_known_computed() % options_.blocks.block_size == 0;
}

void Scheduler::Commit(const Sequence& sequence) {
  blocks_.Commit(sequence.id, sequence.tokens, sequence.num_computed);
}

// Whether the tokens that steps in flight will sample end the sequence for certain.
bool Scheduler::WillFinish(const Sequence& sequence) const {
  if (sequence.num_pending == 0) return false;
  return sequence.num_outputs() + sequence.num_pending >= sequence.request.max_tokens ||
         sequence.num_tokens() >= options_.max_model_len;
}

bool Scheduler::ScheduleDecodes(StepBuilder* builder) {
  bool preempted = false;
  for (auto it = running_.begin(); it != running_.end() && builder->budget > 0;) {
    const Sequence& next = *it->second;
    if (next.beams != nullptr || next.num_to_compute() > 1) builder->unfinished.push_back(it->second);
    if (next.beams == nullptr && !IsDecodeDue(next)) {
      ++it;
    } else if (next.beams == nullptr && next.num_computed % options_.blocks.block_size != 0) {
      AddEntry(it->second, 1, {}, builder);  // its last block has room
      ++it;
    } else {
      const auto [key, sequence] = *it;  // copies, since a preemption may erase them
      sequence->beams == nullptr ? ScheduleDecode(sequence, &preempted, builder)
                                 : ScheduleBeams(sequence, &preempted, builder);
      it = preempted ? running_.upper_bound(key) : std::next(it);
    }
  }
  return preempted;
}

bool Scheduler::IsDecodeDue(const Sequence& sequence) {
  return sequence.num_to_compute() == 1 && !WillFinish(sequence) && !speculation_.IsAwaited(sequence);
}

// Of a sequence whose blocks are full.
void Scheduler::ScheduleDecode(const SequencePtr& sequence, bool* preempted, StepBuilder* builder) {
  std::vector<int32_t> new_blocks;
  while (!blocks_.Grow(sequence->id, sequence->num_computed + 1, &new_blocks)) {
    *preempted = true;
    if (!PreemptForDecode(sequence, builder)) return;
  }
  AddEntry(sequence, 1, std::move(new_blocks), builder);
}

bool Scheduler::PreemptForDecode(const SequencePtr& sequence, StepBuilder* builder) {
  if (PreemptSuspendedBehind(kFirstServiceKey, *sequence)) return true;
  if (running_.size() == 1 && blocks_.PinsGiveWay(blocks_.pins().size()) >= 0) return true;
  const SequencePtr last = running_.rbegin()->second;
  std::vector<SequencePtr> victims = RunningChoices(last);
  const bool has_the_cache = victims.size() == running_.size();
  if (has_the_cache) victims = {last};
  for (const SequencePtr& victim : victims) Unschedule(victim, builder);
  Preempt(victims, PreemptionCause::kNoBlocks);
  if (!has_the_cache) KeepTogether(victims);
  return sequence->state == SequenceState::kRunning;
}

void Scheduler::ScheduleRunningPrefills(StepBuilder* builder) {
  int32_t num_long = 0;
  for (const SequencePtr& sequence : builder->unfinished) {
    if (sequence->state != SequenceState::kRunning) continue;  // it was preempted since
    const bool is_long = sequence->num_to_compute() > long_prefill_tokens_;
    if (is_long && ++num_long > options_.max_long_partial_prefills) {
      builder->overtakers.push_back(sequence);
    } else {
      AddPrefills(sequence, builder);
    }
  }
}

void Scheduler::ScheduleOvertakers(StepBuilder* builder) {
  const auto key = [this](const SequencePtr& one) {
    return PrefillKey(*one, RankOf(*one, one->num_to_compute()));
  };
  std::sort(builder->overtakers.begin(), builder->overtakers.end(),
            [&](const SequencePtr& a, const SequencePtr& b) { return key(a) < key(b); });
  for (const SequencePtr& sequence : builder->overtakers) AddPrefills(sequence, builder);
  builder->overtakers.clear();
}

void Scheduler::AddPrefills(const SequencePtr& sequence, StepBuilder* builder) {
  if (builder->budget == 0) return;
  sequence->beams != nullptr ? AddBeamPrefills(sequence, builder) : AddPrefill(sequence, builder);
}

int64_t Scheduler::RankOf(const Sequence& sequence, int64_t num_tokens) const {
  constexpr int64_t kAging = 8;  // a step's wait is worth this part of its budget
  return num_tokens + sequence.arrival_step * options_.max_num_batched_tokens / kAging;
}

// Returns how many of `num_tokens` further tokens of the sequence the step has room for.
int64_t Scheduler::Chunk(const Sequence& sequence, int64_t num_tokens, const StepBuilder& builder) const {
  const int64_t chunk = std::min(num_tokens, builder.budget);
  if (!sequence.owes_prompt_logprobs()) return chunk;
  return std::min(chunk,
                  builder.reply_bytes / PromptLogprobBytes(sequence.request.sampling->num_prompt_logprobs));
}

// Takes no blocks: admission has taken them for all of the prompt.
void Scheduler::AddPrefill(const SequencePtr& sequence, StepBuilder* builder) {
  const int64_t num_tokens = sequence->num_to_compute();
  const int64_t chunk = Chunk(*sequence, std::min(num_tokens, long_prefill_tokens_), *builder);
  if (chunk == 0) return;
  builder->prefills.push_back({sequence, builder->plan.request.sequences_size(),
                               num_tokens > long_prefill_tokens_, RankOf(*sequence, num_tokens)});
  AddEntry(sequence, chunk, {}, builder);
}

void Scheduler::SpendRest(StepBuilder* builder) {
  std::sort(builder->prefills.begin(), builder->prefills.end(),
            [](const PrefillEntry& a, const PrefillEntry& b) {
              return PrefillKey(*a.sequence, a.rank) < PrefillKey(*b.sequence, b.rank);
            });
  for (const PrefillEntry& prefill : builder->prefills) {
    const bool samples = builder->step.entries[prefill.entry].samples;
    const int64_t rest = samples ? 0 : Chunk(*prefill.sequence, prefill.sequence->num_to_compute(), *builder);
    if (rest > 0) ExtendEntry(prefill.entry, rest, builder);
  }
}

void Scheduler::AddEntry(const SequencePtr& sequence, int64_t num_tokens, std::vector<int32_t> new_blocks,
                         StepBuilder* builder) {
  v1::ScheduledSequence* scheduled = builder->plan.request.add_sequences();
  scheduled->set_slot(sequence->slot);
  scheduled->mutable_new_block_ids()->Add(new_blocks.begin(), new_blocks.end());
  if (Speculation::TakeNamesInput(sequence.get())) NameInput(*sequence, scheduled);
  ScheduledEntry& entry = builder->step.entries.emplace_back();
  entry.sequence = sequence;
  entry.slot = sequence->slot;
  entry.start = sequence->num_computed;
  if (sequence->beams != nullptr || sequence->beam_place > 0) NoteBeam(&entry);
  entry.adopted = entry.start > 0 && entry.start == sequence->num_adopted;
  ExtendEntry(builder->plan.request.sequences_size() - 1, num_tokens, builder);
}

void Scheduler::ExtendEntry(int index, int64_t num_tokens, StepBuilder* builder) {
  ScheduledEntry& entry = builder->step.entries[index];
  Sequence& sequence = *entry.sequence;
  entry.num_tokens += num_tokens;
  sequence.num_computed += num_tokens;
  ChargePrompt(&sequence);
  entry.fills_blocks = FillsBlocks(sequence, entry.num_tokens);
  builder->budget -= num_tokens;
  if (entry.start < sequence.prompt_len() && sequence.owes_prompt_logprobs())
    builder->reply_bytes -= num_tokens * PromptLogprobBytes(sequence.request.sampling->num_prompt_logprobs);
  builder->plan.request.mutable_sequences(index)->set_num_tokens(static_cast<int32_t>(entry.num_tokens));
  if (sequence.num_to_compute() > 0) return;
  entry.samples = true;
  entry.has_forks = !sequence.forks.empty();
  ++sequence.num_pending;
}

}  // namespace somnus
