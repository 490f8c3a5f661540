#include "coordinator/scheduler/beams.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "coordinator/scheduler/step_messages.h"
#include "coordinator/scheduler/step_size.h"
#include "proto/limits.h"

namespace somnus {

absl::Status Beams::Check(const SchedulerOptions& options, const EngineRequest& request) {
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

void Beams::Begin(const BeamState* state, Sequence* leader) const {
  const EngineRequest& request = leader->request;
  if (!request.sampling->beam_search.has_value()) return;
  const int64_t most = std::min<int64_t>(request.max_tokens, options_.max_model_len - leader->prompt_len());
  leader->beam.group = std::make_shared<BeamGroup>(BeamSearch(&*request.sampling->beam_search, request.prompt,
                                                              most, state == nullptr ? BeamState() : *state));
  ResetBeams(leader);
}

void Beams::MakeOthers(const SequencePtr& leader, int64_t* next_id) const {
  BeamGroup& group = *leader->beam.group;
  const auto count = static_cast<size_t>(NumSlots(*leader));
  if (group.is_sent.size() == count) return;
  group.is_sent.resize(count, false);
  group.replays.resize(count);
  while (group.others.size() + 1 < count) {
    auto other = std::make_shared<Sequence>();
    other->id = (*next_id)++;
    other->request.prompt = leader->request.prompt;
    other->request.sampling = leader->request.sampling;
    other->request.cache_salt = leader->request.cache_salt;
    other->request.adapter = leader->request.adapter;
    other->beam.leader = leader;
    other->beam.place = static_cast<int32_t>(group.others.size()) + 1;
    group.others.push_back(std::move(other));
  }
  ResetBeams(leader.get());
}

void Beams::OnStart(const SequencePtr& leader) {
  BeamGroup& group = *leader->beam.group;
  group.candidates.assign(group.search.live().size(), {});
  group.num_candidates = 0;
  group.is_sent[0] = true;
  for (const SequencePtr& other : group.others) {
    other->state = SequenceState::kRunning;
    other->effective_priority = leader->effective_priority;
    other->arrival_step = leader->arrival_step;
    other->slot = slots_.Take();
  }
}

void Beams::OnPreempt(Sequence* leader) {
  BeamGroup& group = *leader->beam.group;
  for (const SequencePtr& other : group.others) {
    slots_.Return(other->slot, group.is_sent[other->beam.place]);
    group.is_sent[other->beam.place] = false;
    other->slot = -1;
    other->state = SequenceState::kWaiting;
  }
}

int64_t Beams::TakeBlocks(const SequencePtr& leader, bool ignore_watermark) {
  BeamGroup& group = *leader->beam.group;
  if (!leader->held.is_suspended)
    return TakeReplayBlocks(leader, leader->uses_prefix_cache(), ignore_watermark, &blocks_);
  if (!group.sources.empty()) {
    if (BeamBlocksMissing(*leader, blocks_) > 0) return -1;
    MoveBeams(leader, &blocks_, copies_.mutable_copies());
    std::vector<int32_t> new_blocks;  // sent with the whole table
    for (const int32_t place : group.places) {
      const Sequence& beam = *BeamIn(leader, place);
      SOMNUS_CHECK(blocks_.Grow(beam.id, beam.num_computed + 1, &new_blocks));
    }
    return leader->num_computed;
  }
  // Tokens that were sampled for some of the beams only are sampled again.
  for (const int32_t place : group.places) {
    Sequence& beam = *BeamIn(leader, place);
    beam.num_computed = std::min(beam.num_computed, static_cast<int64_t>(beam.tokens.size()) - 1);
  }
  return leader->num_computed;
}

bool Beams::MayGoOn(const Sequence& leader, const StepBuilder& builder) const {
  const auto num_beams = static_cast<int64_t>(leader.beam.group->sources.size());
  const int64_t bytes = num_beams * SequenceForkBytes(leader.num_computed, options_.blocks.block_size);
  return num_beams == 0 || (num_beams <= builder.budget && bytes <= builder.request_bytes);
}

int32_t Beams::BlocksMissing(const Sequence& leader) const {
  return leader.beam.group->sources.empty() ? 0 : BeamBlocksMissing(leader, blocks_);
}

void Beams::AddDecodes(const SequencePtr& leader, StepBuilder* builder) {
  const BeamGroup& group = *leader->beam.group;
  if (group.sources.empty()) return AddReplays(leader, builder);
  const std::vector<int32_t> copied = MoveBeams(leader, &blocks_, copies_.mutable_copies());
  for (size_t i = 0; i < copied.size(); ++i) AddBeam(leader, group.places[i], copied[i], builder);
}

// `copied`: the place of which the beam in `place` has become a copy; -1: it is no copy.
void Beams::AddBeam(const SequencePtr& leader, int32_t place, int32_t copied, StepBuilder* builder) {
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
    leader->beam.group->is_sent[place] = true;
    ++stats_.num_forks;
  }
  std::vector<int32_t> new_blocks;
  SOMNUS_CHECK(blocks_.Grow(beam->id, beam->num_computed + 1, &new_blocks));
  const int64_t start = beam->num_computed;
  builder->AddEntry(beam, 1, std::move(new_blocks));
  v1::ScheduledSequence* scheduled = request.mutable_sequences(request.sequences_size() - 1);
  scheduled->add_input_token_ids(beam->tokens.back());
  scheduled->set_start_position(static_cast<int32_t>(start));
}

// Adds the last tokens of beams that are computed anew after a preemption, or of the prompt. AddPrefills adds
// longer chunks.
void Beams::AddReplays(const SequencePtr& leader, StepBuilder* builder) {
  BeamGroup& group = *leader->beam.group;
  for (const int32_t place : group.places) {
    BeamGroup::Replay& replay = group.replays[place];
    // The tokens that a donor itself shares with an earlier beam count as computed before they are.
    replay.is_ready |= group.replays[replay.donor].is_ready &&
                       BeamIn(leader, replay.donor)->num_computed >= replay.num_shared;
  }
  for (const int32_t place : group.places) {
    const SequencePtr beam = BeamIn(leader, place);
    const bool is_due = beam->num_to_compute() == 1 && beam->num_pending == 0 && builder->budget > 0;
    if (is_due && SendReplay(leader, place, builder)) builder->AddEntry(beam, 1);
  }
}

void Beams::AddPrefills(const SequencePtr& leader, StepBuilder* builder) {
  if (!leader->beam.group->sources.empty()) return;
  for (const int32_t place : leader->beam.group->places) {
    const SequencePtr beam = BeamIn(leader, place);
    const bool is_due = beam->num_to_compute() > 1 && builder->budget > 0;
    if (is_due && SendReplay(leader, place, builder)) builder->AddPrefill(beam);
  }
}

// Sends the beam in `place` whole, if the workers do not know it. False: the beam has to wait.
bool Beams::SendReplay(const SequencePtr& leader, int32_t place, StepBuilder* builder) {
  BeamGroup& group = *leader->beam.group;
  if (!group.replays[place].is_ready) return false;
  if (group.is_sent[place]) return true;
  const Sequence& beam = *BeamIn(leader, place);
  if (!builder->HasBytes(beam)) return false;
  builder->SendWhole(beam, blocks_.Table(beam.id));
  group.is_sent[place] = true;
  return true;
}

absl::Status Beams::Apply(const ScheduledEntry& entry, const v1::SampledToken& token, RequestOutput* output) {
  const SequencePtr& leader = entry.owner();
  --entry.sequence->num_pending;
  BeamGroup& group = *leader->beam.group;
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
  } else if (leader->state == SequenceState::kRunning || leader->held.is_swapped) {
    group.sources = std::move(sources);
  } else {
    ResetBeams(leader.get());
  }
  return absl::OkStatus();
}

void Beams::TakeBestBeam(const RequestOutput& output, Sequence* leader) {
  if (output.beams.empty()) return;
  const std::vector<int32_t>& outputs = output.beams[0].outputs;
  leader->tokens = leader->request.prompt;
  leader->tokens.insert(leader->tokens.end(), outputs.begin(), outputs.end());
}

}  // namespace somnus
