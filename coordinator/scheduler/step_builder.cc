#include "coordinator/scheduler/step_builder.h"

#include <algorithm>
#include <utility>

#include "coordinator/scheduler/beam_group.h"
#include "coordinator/scheduler/speculation.h"
#include "coordinator/scheduler/step_size.h"

namespace somnus {

StepBuilder::StepBuilder(const SchedulerOptions& options, const LongPrompts& long_prompts,
                         BlockManager* blocks, StepLedger* ledger, size_t num_sequences)
    : budget(options.max_num_batched_tokens),
      request_bytes(options.step_bytes),
      options_(options),
      long_prompts_(long_prompts),
      blocks_(*blocks),
      reply_bytes_(options.step_bytes) {
  ledger->TakeMemory(&plan.request, &step.entries);
  step.entries.reserve(num_sequences);
}

int64_t StepBuilder::Chunk(const Sequence& sequence, int64_t num_tokens) const {
  const int64_t chunk = std::min(num_tokens, budget);
  if (!HasReplyRoom(sequence)) return 0;
  if (!sequence.owes_prompt_logprobs()) return chunk;
  return std::min(chunk, reply_bytes_ / PromptLogprobBytes(sequence.request.sampling->num_prompt_logprobs));
}

bool StepBuilder::HasReplyRoom(const Sequence& sequence) const {
  return !sequence.pools() || !has_pooled_ || reply_bytes_ >= options_.pooled_bytes;
}

// The first new sequence of a step always has room, since Scheduler::Check bounds its size.
bool StepBuilder::HasBytes(const Sequence& sequence) const {
  const bool is_first = plan.request.new_sequences_size() == 0;
  if (!is_first && writer_.Cost(sequence, options_.blocks.block_size) > request_bytes) return false;
  return Chunk(sequence, 1) > 0;
}

void StepBuilder::SendWhole(const Sequence& sequence, const std::vector<int32_t>& block_ids) {
  request_bytes -= writer_.Cost(sequence, options_.blocks.block_size);
  writer_.Add(sequence, block_ids);
}

// In a pipeline the first stages do not know what the last stage has sampled. Beams name their input
// themselves.
bool StepBuilder::NamesSampledToken(const Sequence& sequence) const {
  return options_.num_stages > 1 && sequence.num_outputs() > 0 && sequence.num_to_compute() == 1 &&
         sequence.num_pending == 0 && sequence.beam.group == nullptr && sequence.beam.place == 0;
}

void StepBuilder::AddEntry(const SequencePtr& sequence, int64_t num_tokens, std::vector<int32_t> new_blocks) {
  v1::ScheduledSequence* scheduled = plan.request.add_sequences();
  scheduled->set_slot(sequence->slot);
  scheduled->mutable_new_block_ids()->Add(new_blocks.begin(), new_blocks.end());
  if (Speculation::TakeNamesInput(sequence.get()) || NamesSampledToken(*sequence))
    NameInput(*sequence, scheduled);
  ScheduledEntry& entry = step.entries.emplace_back();
  entry.sequence = sequence;
  entry.slot = sequence->slot;
  entry.start = sequence->num_computed;
  if (sequence->beam.group != nullptr || sequence->beam.place > 0) NoteBeam(&entry);
  entry.adopted = entry.start > 0 && entry.start == sequence->num_adopted;
  Extend(plan.request.sequences_size() - 1, num_tokens);
}

void StepBuilder::Extend(int index, int64_t num_tokens) {
  ScheduledEntry& entry = step.entries[index];
  Sequence& sequence = *entry.sequence;
  entry.num_tokens += num_tokens;
  sequence.num_computed += num_tokens;
  sequence.ChargePrompt();
  entry.fills_blocks = sequence.MayHaveFilledBlock(entry.num_tokens, options_.blocks.block_size);
  budget -= num_tokens;
  if (entry.start < sequence.prompt_len() && sequence.owes_prompt_logprobs())
    reply_bytes_ -= num_tokens * PromptLogprobBytes(sequence.request.sampling->num_prompt_logprobs);
  plan.request.mutable_sequences(index)->set_num_tokens(static_cast<int32_t>(entry.num_tokens));
  if (sequence.num_to_compute() > 0) return;
  entry.samples = true;
  if (sequence.pools()) {
    has_pooled_ = true;
    reply_bytes_ -= options_.pooled_bytes;
  }
  entry.has_forks = !sequence.choice.forks.empty();
  ++sequence.num_pending;
}

void StepBuilder::AddPrefill(const SequencePtr& sequence) {
  const int64_t num_tokens = sequence->num_to_compute();
  int64_t chunk = Chunk(*sequence, std::min(num_tokens, long_prompts_.threshold()));
  if (chunk == 0) return;
  std::vector<int32_t> new_blocks;
  blocks_.GrowForStep(sequence->id, sequence->num_tokens(), &new_blocks);
  chunk = std::min(chunk, RoomInTable(*sequence));
  if (chunk == 0) return;
  prefills.push_back({sequence, plan.request.sequences_size(), long_prompts_.IsLong(num_tokens),
                      long_prompts_.RankOf(*sequence, num_tokens)});
  AddEntry(sequence, chunk, std::move(new_blocks));
}

void StepBuilder::SpendRest() {
  std::sort(prefills.begin(), prefills.end(), [](const PrefillEntry& a, const PrefillEntry& b) {
    return LongPrompts::KeyOf(*a.sequence, a.rank) < LongPrompts::KeyOf(*b.sequence, b.rank);
  });
  for (const PrefillEntry& prefill : prefills) {
    const Sequence& sequence = *prefill.sequence;
    const int64_t wanted = Samples(prefill) ? 0 : std::min(sequence.num_to_compute(), RoomInTable(sequence));
    const int64_t rest = wanted == 0 ? 0 : Chunk(sequence, wanted);
    if (rest > 0) Extend(prefill.entry, rest);
  }
}

bool StepBuilder::HasBeamsOf(const Sequence& leader) const {
  return leader.beam.group != nullptr &&
         std::any_of(step.entries.begin(), step.entries.end(),
                     [&](const ScheduledEntry& entry) { return entry.owner().get() == &leader; });
}

void StepBuilder::Unschedule(const SequencePtr& sequence) {
  std::vector<ScheduledEntry>& entries = step.entries;
  const auto entry = std::find_if(entries.begin(), entries.end(),
                                  [&](const ScheduledEntry& one) { return one.sequence == sequence; });
  if (entry == entries.end()) return;
  const auto index = static_cast<int>(entry - entries.begin());
  plan.request.mutable_sequences()->DeleteSubrange(index, 1);
  std::erase_if(prefills, [&](const PrefillEntry& one) { return one.entry == index; });
  for (PrefillEntry& prefill : prefills) prefill.entry -= prefill.entry > index ? 1 : 0;
  sequence->num_computed -= entry->num_tokens;
  sequence->num_pending -= entry->samples ? 1 : 0;
  budget += entry->num_tokens;
  entries.erase(entry);
}

}  // namespace somnus
