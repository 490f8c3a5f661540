#include "coordinator/scheduler/continuation.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "coordinator/scheduler/choices.h"

namespace somnus {

bool Continuation::Run(StepBuilder* builder) {
  preempted_ = false;
  AddDecodes(builder);
  AddUnfinished(builder);
  unfinished_.clear();
  return preempted_;
}

void Continuation::AddDecodes(StepBuilder* builder) {
  const LiveSequences::Running& running = sequences_.running();
  // The stages of a pipeline share the sequences: each step in flight decodes a part.
  const int32_t num_parts = options_.fills_stages ? options_.num_stages : 1;
  const size_t most = (running.size() + num_parts - 1) / num_parts;
  for (auto it = running.begin(); it != running.end() && builder->budget > 0;) {
    const Sequence& next = *it->second;
    const bool is_group = next.beam.group != nullptr;
    if (is_group || next.num_to_compute() > 1) unfinished_.push_back(it->second);
    const bool is_full = num_parts > 1 && builder->step.entries.size() >= most;
    if (is_full || (!is_group && (!IsDecodeDue(next) || !builder->HasReplyRoom(next)))) {
      ++it;
    } else if (!is_group && next.num_computed % options_.blocks.block_size != 0) {
      builder->AddEntry(it->second, 1);  // its last block has room
      ++it;
    } else {
      const auto [key, sequence] = *it;  // copies, since a preemption may erase them
      AddDecode(sequence, builder);
      it = preempted_ ? running.upper_bound(key) : std::next(it);
    }
  }
}

bool Continuation::IsDecodeDue(const Sequence& sequence) {
  if (sequence.num_to_compute() != 1) return false;
  if (options_.num_stages > 1 && sequence.num_pending > 0) return false;
  // The tokens that steps in flight will sample may end the sequence for certain.
  const bool will_finish = sequence.num_pending > 0 &&
                           (sequence.num_outputs() + sequence.num_pending >= sequence.request.max_tokens ||
                            sequence.num_tokens() >= options_.max_model_len);
  return !will_finish && drafts_.MayRun(sequence);
}

void Continuation::AddDecode(const SequencePtr& sequence, StepBuilder* builder) {
  const bool is_group = sequence->beam.group != nullptr;
  if (is_group && !beams_.MayGoOn(*sequence, *builder)) return;
  const auto blocks_missing = [&] {
    return is_group ? beams_.BlocksMissing(*sequence)
                    : blocks_.BlocksMissingToGrow(sequence->id, sequence->num_computed + 1);
  };
  while (blocks_missing() > 0) {
    preempted_ = true;
    if (!PreemptFor(sequence, builder)) return;
  }
  if (is_group) return beams_.AddDecodes(sequence, builder);
  std::vector<int32_t> new_blocks;
  SOMNUS_CHECK(blocks_.Grow(sequence->id, sequence->num_computed + 1, &new_blocks));
  builder->AddEntry(sequence, 1, std::move(new_blocks));
}

bool Continuation::PreemptFor(const SequencePtr& sequence, StepBuilder* builder) {
  const LiveSequences::Running& running = sequences_.running();
  if (sequences_.PreemptSuspendedBehind(kFirstServiceKey, *sequence)) return true;
  if (running.size() == 1 && blocks_.pins().GiveWay(blocks_.pins().size()) >= 0) return true;
  const SequencePtr last = running.rbegin()->second;
  if (builder->HasBeamsOf(*last)) return false;
  std::vector<SequencePtr> victims = Choices::Running(last);
  const bool has_the_cache = victims.size() == running.size();
  if (has_the_cache) victims = {last};
  for (const SequencePtr& victim : victims) builder->Unschedule(victim);
  sequences_.Preempt(victims, PreemptionCause::kNoBlocks);
  if (!has_the_cache) Choices::KeepTogether(victims);
  return sequence->state == SequenceState::kRunning;
}

void Continuation::AddUnfinished(StepBuilder* builder) {
  int32_t num_long = 0;
  for (const SequencePtr& sequence : unfinished_) {
    if (sequence->state != SequenceState::kRunning) continue;  // it was preempted since
    const bool is_long = long_prompts_.IsLong(sequence->num_to_compute());
    if (is_long && ++num_long > options_.max_long_partial_prefills) {
      builder->overtakers.push_back(sequence);
      continue;
    }
    const bool is_group = sequence->beam.group != nullptr;
    while (!is_group && builder->budget > 0 && sequence->state == SequenceState::kRunning &&
           blocks_.BlocksMissingToGrow(sequence->id, sequence->num_computed + 1) > 0) {
      preempted_ = true;
      if (!PreemptFor(sequence, builder)) break;
    }
    if (sequence->state == SequenceState::kRunning) AddPrefills(sequence, builder);
  }
}

void Continuation::AddOvertakers(StepBuilder* builder) {
  const auto key = [this](const SequencePtr& one) {
    return LongPrompts::KeyOf(*one, long_prompts_.RankOf(*one, one->num_to_compute()));
  };
  std::sort(builder->overtakers.begin(), builder->overtakers.end(),
            [&](const SequencePtr& a, const SequencePtr& b) { return key(a) < key(b); });
  for (const SequencePtr& sequence : builder->overtakers) {
    if (sequence->state == SequenceState::kRunning) AddPrefills(sequence, builder);
  }
  builder->overtakers.clear();
}

void Continuation::AddPrefills(const SequencePtr& sequence, StepBuilder* builder) {
  if (builder->budget == 0) return;
  sequence->beam.group != nullptr ? beams_.AddPrefills(sequence, builder) : builder->AddPrefill(sequence);
}

}  // namespace somnus
