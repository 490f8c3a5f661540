// The Scheduler's part for beam search: blocks, slots and messages of the beams of a group. beam_search.h
// decides which beams go on.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "coordinator/scheduler/beam_group.h"
#include "coordinator/scheduler/scheduler.h"
#include "coordinator/scheduler/step_size.h"

namespace somnus {

void Scheduler::BeginBeams(const BeamState* state, Sequence* leader) const {
  const EngineRequest& request = leader->request;
  if (!request.sampling->beam_search.has_value()) return;
  const int64_t most = std::min<int64_t>(request.max_tokens, options_.max_model_len - leader->prompt_len());
  leader->beams = std::make_shared<BeamGroup>(BeamSearch(&*request.sampling->beam_search, request.prompt,
                                                         most, state == nullptr ? BeamState() : *state));
  ResetBeams(leader);
  ResetBeams(leader);
}

void Scheduler::MakeOtherBeams(const SequencePtr& leader) {
  BeamGroup& group = *leader->beams;
  const auto count = static_cast<size_t>(NumSlots(*leader));
  if (group.is_sent.size() == count) return;
  group.is_sent.resize(count, false);
  group.replays.resize(count);
  while (group.others.size() + 1 < count) {
    auto other = std::make_shared<Sequence>();
    other->id = next_sequence_id_++;
    other->request.prompt = leader->request.prompt;
    other->request.sampling = leader->request.sampling;
    other->request.cache_salt = leader->request.cache_salt;
    other->leader = leader;
    other->beam_place = static_cast<int32_t>(group.others.size()) + 1;
    group.others.push_back(std::move(other));
  }
  ResetBeams(leader.get());
}

void Scheduler::TakeBeamSlots(const SequencePtr& leader) {
  BeamGroup& group = *leader->beams;
  group.candidates.assign(group.search.live().size(), {});
  group.num_candidates = 0;
  group.is_sent[0] = true;
  for (const SequencePtr& other : group.others) {
    other->state = SequenceState::kRunning;
    other->effective_priority = leader->effective_priority;
    other->arrival_step = leader->arrival_step;
    other->slot = free_slots_.back();
    free_slots_.pop_back();
  }
}

void Scheduler::ReturnBeamSlots(Sequence* leader) {
  BeamGroup& group = *leader->beams;
  for (const SequencePtr& other : group.others) {
    free_slots_.push_back(other->slot);
    if (group.is_sent[other->beam_place]) freed_slots_.push_back(other->slot);
    group.is_sent[other->beam_place] = false;
    other->slot = -1;
    other->state = SequenceState::kWaiting;
  }
}

int64_t Scheduler::TakeBeamBlocks(const SequencePtr& leader) {
  MakeOtherBeams(leader);
  BeamGroup& group = *leader->beams;
  if (leader->is_swapped && !SwapIn(leader)) return -1;
  if (!leader->is_suspended)
    return TakeReplayBlocks(leader, UsesPrefixCache(*leader), running_.empty(), &blocks_);
  if (!group.sources.empty()) {
    if (BeamBlocksMissing(*leader, blocks_) > 0) return -1;
    MoveBeams(leader, &blocks_, &copies_);
    std::vector<int32_t> new_blocks;  // they go with the others
    for (const int32_t place : group.places) {
      const Sequence& beam = *BeamIn(leader, place);
      SOMNUS_CHECK(blocks_.Grow(beam.id, beam.num_computed + 1, &new_blocks));
    }
    return leader->num_computed;
  }
  // Whatever was sampled of some beams only is sampled again.
  for (const int32_t place : group.places) {
    Sequence& beam = *BeamIn(leader, place);
    beam.num_computed = std::min(beam.num_computed, static_cast<int64_t>(beam.tokens.size()) - 1);
  }
  return leader->num_computed;
}

void Scheduler::ScheduleBeams(const SequencePtr& leader, bool* preempted, StepBuilder* builder) {
  const BeamGroup& group = *leader->beams;
  if (group.sources.empty()) return ScheduleReplays(leader, builder);
  const auto num_beams = static_cast<int64_t>(group.sources.size());
  const int64_t bytes = num_beams * SequenceForkBytes(leader->num_computed, options_.blocks.block_size);
  if (num_beams > builder->budget || bytes > builder->request_bytes) return;
  while (BeamBlocksMissing(*leader, blocks_) > 0) {
    *preempted = true;
    if (!PreemptForDecode(leader, builder)) return;
  }
  const std::vector<int32_t> copied = MoveBeams(leader, &blocks_, &copies_);
  for (size_t i = 0; i < copied.size(); ++i) SendBeam(leader, group.places[i], copied[i], builder);
}

void Scheduler::SendBeam(const SequencePtr& leader, int32_t place, int32_t copied, StepBuilder* builder) {
  const SequencePtr beam = BeamIn(leader, place);
  v1::StepRequest& request = builder->plan.request;
  if (copied >= 0) {
    v1::SequenceFork* branch = request.add_branches();
    branch->set_slot(beam->slot);
    branch->set_source_slot(BeamIn(leader, copied)->slot);
    branch->set_seed(leader->request.seed);
    const std::vector<int32_t> blocks = blocks_.Table(beam->id);
    branch->mutable_block_ids()->Add(blocks.begin(), blocks.end());
    builder->request_bytes -= SequenceForkBytes(beam->num_computed, options_.blocks.block_size);
    leader->beams->is_sent[place] = true;
    ++stats_.num_forks;
  }
  std::vector<int32_t> new_blocks;
  SOMNUS_CHECK(blocks_.Grow(beam->id, beam->num_computed + 1, &new_blocks));
  const int64_t start = beam->num_computed;
  AddEntry(beam, 1, std::move(new_blocks), builder);
  v1::ScheduledSequence* scheduled = request.mutable_sequences(request.sequences_size() - 1);
  scheduled->add_input_token_ids(beam->tokens.back());
  scheduled->set_start_position(static_cast<int32_t>(start));
}

// Beams that are computed anew after a preemption, or the prompt: single tokens now, more in
// ScheduleRunningPrefills.
void Scheduler::ScheduleReplays(const SequencePtr& leader, StepBuilder* builder) {
  BeamGroup& group = *leader->beams;
  for (const int32_t place : group.places) {
    BeamGroup::Replay& replay = group.replays[place];
    // What a donor itself shares counts as computed before it is.
    replay.is_ready |= group.replays[replay.donor].is_ready &&
                       BeamIn(leader, replay.donor)->num_computed >= replay.num_shared;
  }
  for (const int32_t place : group.places) {
    const SequencePtr beam = BeamIn(leader, place);
    const bool is_due = beam->num_to_compute() == 1 && beam->num_pending == 0 && builder->budget > 0;
    if (is_due && SendReplay(leader, place, builder)) AddEntry(beam, 1, {}, builder);
  }
}

void Scheduler::AddBeamPrefills(const SequencePtr& leader, StepBuilder* builder) {
  if (!leader->beams->sources.empty()) return;
  for (const int32_t place : leader->beams->places) {
    const SequencePtr beam = BeamIn(leader, place);
    const bool is_due = beam->num_to_compute() > 1 && builder->budget > 0;
    if (is_due && SendReplay(leader, place, builder)) AddPrefill(beam, builder);
  }
}

// Sees to it that the workers know the beam in `place`. False: it has to wait.
bool Scheduler::SendReplay(const SequencePtr& leader, int32_t place, StepBuilder* builder) {
  BeamGroup& group = *leader->beams;
  if (!group.replays[place].is_ready) return false;
  if (group.is_sent[place]) return true;
  const Sequence& beam = *BeamIn(leader, place);
  if (!HasBytes(beam, *builder)) return false;
  builder->request_bytes -= builder->writer.Cost(beam, options_.blocks.block_size);
  builder->writer.Add(beam, blocks_.Table(beam.id));
  group.is_sent[place] = true;
  return true;
}

void Scheduler::NoteBeam(ScheduledEntry* entry) {
  const int32_t place = entry->sequence->beam_place;
  if (place > 0) entry->leader = entry->sequence->leader.lock();
  const std::vector<int32_t>& places = entry->owner()->beams->places;
  entry->beam = static_cast<int32_t>(std::find(places.begin(), places.end(), place) - places.begin());
}

absl::Status Scheduler::ApplyBeam(const ScheduledEntry& entry, const v1::SampledToken& token,
                                  RequestOutput* output) {
  const SequencePtr& leader = entry.owner();
  --entry.sequence->num_pending;
  BeamGroup& group = *leader->beams;
  const v1::StepLogprobs& logprobs = token.logprobs();
  if (logprobs.token_ids_size() < 2 || logprobs.token_ids_size() != logprobs.logprobs_size())
    return absl::InternalError(absl::StrCat("the reply has no candidates for slot ", entry.slot));
  group.candidates[entry.beam] = FromMessage(logprobs);
  if (++group.num_candidates < group.candidates.size()) return absl::OkStatus();
  stats_.generation_tokens += static_cast<int64_t>(group.candidates.size());
  leader->Charge(UserAccounts::kOutputWeight * static_cast<int64_t>(group.candidates.size()));
  std::vector<int32_t> sources = group.search.Advance(group.candidates);
  group.candidates.assign(sources.size(), {});
  group.num_candidates = 0;
  if (group.search.done()) {
    output->beams = group.search.Answers();
    output->finish_reason = output->beams.empty() ? FinishReason::kLength : output->beams[0].finish_reason;
    Finish(leader);
    if (!output->beams.empty()) {  // what the sequence counts as
      leader->tokens = leader->request.prompt;
      leader->tokens.insert(leader->tokens.end(), output->beams[0].outputs.begin(),
                            output->beams[0].outputs.end());
    }
  } else if (leader->state == SequenceState::kRunning || leader->is_swapped) {
    group.sources = std::move(sources);
  } else {
    ResetBeams(leader.get());
  }
  return absl::OkStatus();
}

absl::Status Scheduler::CheckBeams(const SchedulerOptions& options, const EngineRequest& request) {
  const int64_t width = request.sampling->beam_search->width, block_size = options.blocks.block_size;
  const int64_t most = std::min({options.max_num_seqs, options.max_num_batched_tokens, kMaxStepLogprobs / 2});
  if (width < 1 || width > most)
    return absl::InvalidArgumentError(absl::StrCat("n: a beam search must have 1 to ", most, " beams"));
  if (request.max_tokens < 1)
    return absl::InvalidArgumentError("max_tokens: a beam search needs one at least");
  const int64_t prompt_len = static_cast<int64_t>(request.prompt.size());
  const int64_t longest = std::min<int64_t>(prompt_len + request.max_tokens, options.max_model_len);
  const int64_t shared = prompt_len / block_size;
  const int64_t needed = shared + width * ((longest + block_size - 1) / block_size - shared);
  if (needed > TotalBlocks(options.blocks.num_blocks)) {
    return absl::InvalidArgumentError(
        absl::StrCat("n: ", width, " beams of ", longest, " tokens can never fit in the KV cache of ",
                     TotalBlocks(options.blocks.num_blocks) * block_size, " tokens"));
  }
  if (width * SequenceForkBytes(longest, options.blocks.block_size) <= options.step_bytes)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("n: ", width, " beams of ", longest, " tokens are more than a step's message holds"));
}

}  // namespace somnus
