// The part of the Scheduler that computes a prompt once for all choices of it: the first one computes it, and
// the others fork it in the step in which it samples. Each samples from the same logits, with its own seed.

#include <algorithm>
#include <utility>

#include "coordinator/scheduler/scheduler.h"
#include "coordinator/scheduler/step_size.h"

namespace somnus {

void Scheduler::LinkFork(const SequencePtr& sequence) {
  const auto it = live_.find(sequence->request.fork_of);
  if (it == live_.end() || sequence->was_scheduled || sequence->owes_prompt_logprobs()) return;
  Sequence& source = *it->second;
  const bool computes_the_same = source.request.sampling == sequence->request.sampling &&
                                 source.request.cache_salt == sequence->request.cache_salt &&
                                 source.request.priority == sequence->request.priority &&
                                 source.request.prompt == sequence->request.prompt;
  if (!computes_the_same || source.num_outputs() > 0 || source.num_pending > 0) return;
  sequence->fork_source = it->second;
  source.forks.push_back(sequence);
  if (source.was_scheduled) NoteForkOnItsWay(sequence);
}

SequencePtr Scheduler::ForkSource(const Sequence& sequence) const {
  SequencePtr source = sequence.fork_source.lock();
  return source == nullptr || source->forks.empty() ? nullptr : source;
}

void Scheduler::ForkSequences(StepBuilder* builder) {
  const size_t num_entries = builder->step.entries.size();
  for (size_t i = 0; i < num_entries; ++i) {
    if (!builder->step.entries[i].has_forks) continue;
    const SequencePtr source = builder->step.entries[i].sequence;
    bool has_room = true;
    for (const std::weak_ptr<Sequence>& fork : std::exchange(source->forks, {})) {
      const SequencePtr sequence = fork.lock();
      if (sequence == nullptr || sequence->finished()) continue;
      sequence->fork_source.reset();
      // One without room is admitted later, as any other, with what the prefix cache has of the prompt.
      has_room = has_room && Fork(*source, sequence, builder);
    }
  }
}

bool Scheduler::Fork(const Sequence& source, const SequencePtr& sequence, StepBuilder* builder) {
  const int64_t bytes = SequenceForkBytes(source.num_computed, options_.blocks.block_size);
  if (free_slots_.empty() || bytes > builder->request_bytes || IsKeptApart(*sequence)) return false;
  if (!blocks_.ForkAt(source.id, sequence->id, source.num_computed, &copies_)) return false;
  builder->request_bytes -= bytes;
  blocks_.Withdraw(sequence->id);
  StartRunning(sequence, source.num_computed);
  sequence->num_adopted = static_cast<int32_t>(source.num_computed);
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

void Scheduler::SendCopies(v1::StepRequest* request) {
  stats_.block_copies += static_cast<int64_t>(copies_.size());
  for (const BlockCopyOp& copy : copies_) {
    v1::BlockCopy* message = request->add_copies();
    message->set_src(copy.src);
    message->set_dst(copy.dst);
  }
  copies_.clear();
}

}  // namespace somnus
