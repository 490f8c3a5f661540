#include "coordinator/scheduler/beam_group.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace somnus {
namespace {

// Returns the place of the earlier beam with the longest common beginning, and how many tokens in full blocks
// both beams have. Beams differ, so that at least the last token is left to compute.
std::pair<int32_t, int64_t> DonorOf(const BeamGroup& group, size_t beam, int64_t prompt_len,
                                    int32_t block_size) {
  const std::vector<Beam>& live = group.search.live();
  const std::vector<int32_t>& outputs = live[beam].outputs;
  std::pair<int32_t, int64_t> best = {0, -1};
  for (size_t i = 0; i < beam; ++i) {
    const auto begin = live[i].outputs.begin();
    const int64_t common = std::mismatch(begin, live[i].outputs.end(), outputs.begin()).first - begin;
    if (common > best.second) best = {static_cast<int32_t>(i), common};
  }
  const int64_t shared = prompt_len + best.second;
  return {best.first, shared - shared % block_size};
}

// The leader, whose own beam is dead, takes the beam of another place.
void SwapWithLeader(Sequence* leader, int32_t place, BlockManager* blocks) {
  Sequence& other = *leader->beam.group->others[place - 1];
  blocks->sharing().SwapTables(leader->id, other.id);
  std::swap(leader->slot, other.slot);
  std::swap(leader->tokens, other.tokens);
}

// Only the last, partly filled block is copied.
void CopyBeam(const Sequence& source, Sequence* to, BlockManager* blocks, std::vector<BlockCopyOp>* copies) {
  to->tokens = source.tokens;
  to->num_computed = source.num_computed;
  blocks->sharing().Fork(source.id, to->id);
  const bool has_partial = source.num_computed % blocks->block_size() != 0;
  SOMNUS_CHECK(!has_partial || blocks->sharing().MakeWritable(to->id, source.num_computed, copies));
}

}  // namespace

SequencePtr BeamIn(const SequencePtr& leader, int32_t place) {
  return place == 0 ? leader : leader->beam.group->others[place - 1];
}

int32_t NumSlots(const Sequence& sequence) {
  return sequence.beam.group == nullptr ? 1 : sequence.request.sampling->beam_search->width;
}

bool HasPending(const Sequence& sequence) {
  if (sequence.num_pending > 0 || sequence.beam.group == nullptr) return sequence.num_pending > 0;
  const std::vector<SequencePtr>& others = sequence.beam.group->others;
  return std::any_of(others.begin(), others.end(), [](const SequencePtr& s) { return s->num_pending > 0; });
}

void ResetBeams(Sequence* leader) {
  BeamGroup& group = *leader->beam.group;
  const std::vector<Beam>& live = group.search.live();
  group.sources.clear();
  group.places.clear();
  for (size_t i = 0; i < live.size(); ++i) {
    group.places.push_back(static_cast<int32_t>(i));
    if (i > group.others.size()) continue;  // the sequences are not made yet
    Sequence& sequence = i == 0 ? *leader : *group.others[i - 1];
    sequence.tokens.assign(leader->request.prompt.begin(), leader->request.prompt.end());
    sequence.tokens.insert(sequence.tokens.end(), live[i].outputs.begin(), live[i].outputs.end());
  }
}

std::vector<const Sequence*> WithBlocks(const Sequence& sequence, const BlockManager& blocks) {
  std::vector<const Sequence*> with_blocks = {&sequence};
  if (sequence.beam.group == nullptr) return with_blocks;
  for (const SequencePtr& other : sequence.beam.group->others) {
    if (blocks.HasTable(other->id)) with_blocks.push_back(other.get());
  }
  return with_blocks;
}

std::vector<const Sequence*> WithHostBlocks(const Sequence& sequence, const BlockManager& blocks) {
  std::vector<const Sequence*> with_blocks = {&sequence};
  if (sequence.beam.group == nullptr) return with_blocks;
  for (const SequencePtr& other : sequence.beam.group->others) {
    if (blocks.swapped().Has(other->id)) with_blocks.push_back(other.get());
  }
  return with_blocks;
}

void FreeBlocks(Sequence* sequence, BlockManager* blocks) {
  blocks->Free(sequence->id);
  sequence->num_computed = 0;
  if (sequence->beam.group == nullptr) return;
  for (const SequencePtr& other : sequence->beam.group->others) {
    if (blocks->HasTable(other->id)) blocks->Free(other->id);
    other->num_computed = 0;
  }
  ResetBeams(sequence);
}

int64_t TakeReplayBlocks(const SequencePtr& leader, bool use_cache, bool ignore_watermark,
                         BlockManager* blocks) {
  BeamGroup& group = *leader->beam.group;
  const int64_t computed =
      blocks->Allocate(leader->id, leader->tokens, leader->request.cache_salt, use_cache, ignore_watermark,
                       /*whole=*/true);
  if (computed < 0) return -1;
  for (size_t i = 1; i < group.places.size(); ++i) {
    const auto [donor, shared] = DonorOf(group, i, leader->prompt_len(), blocks->block_size());
    Sequence& beam = *group.others[i - 1];
    blocks->sharing().ForkPrefix(BeamIn(leader, donor)->id, beam.id,
                                 static_cast<int32_t>(shared / blocks->block_size()));
    beam.num_computed = shared;
    group.replays[i] = {donor, shared, /*is_ready=*/false};
    std::vector<int32_t> new_blocks;  // sent with the whole table
    if (blocks->Grow(beam.id, static_cast<int64_t>(beam.tokens.size()), &new_blocks)) continue;
    FreeBlocks(leader.get(), blocks);
    return -1;
  }
  return computed;
}

int32_t BeamBlocksMissingToStart(const Sequence& leader, bool use_cache, BlockManager* blocks) {
  const BeamGroup& group = *leader.beam.group;
  if (leader.held.is_suspended) return group.sources.empty() ? 0 : BeamBlocksMissing(leader, *blocks);
  const auto num_tokens = static_cast<int64_t>(leader.tokens.size());
  int32_t missing = blocks->BlocksMissing(leader.id, leader.tokens, leader.request.cache_salt, use_cache,
                                          /*ignore_watermark=*/false, /*whole=*/true);
  for (size_t i = 1; i < group.places.size(); ++i) {
    const int64_t shared = DonorOf(group, i, leader.prompt_len(), blocks->block_size()).second;
    missing += blocks->BlocksFor(num_tokens) - static_cast<int32_t>(shared / blocks->block_size());
  }
  return missing;
}

int32_t BeamBlocksMissing(const Sequence& leader, const BlockManager& blocks) {
  const BeamGroup& group = *leader.beam.group;
  std::vector<bool> goes_on(group.places.size(), false);
  for (const int32_t source : group.sources) goes_on[source] = true;
  BlockManager::FreedBlocks freed;
  for (size_t i = 0; i < goes_on.size(); ++i) {
    const int32_t place = group.places[i];
    if (!goes_on[i]) freed.Add(blocks, place == 0 ? leader.id : group.others[place - 1]->id);
  }
  const auto num_beams = static_cast<int32_t>(group.sources.size());
  const auto num_sources = static_cast<int32_t>(std::count(goes_on.begin(), goes_on.end(), true));
  const bool is_full = leader.num_computed % blocks.block_size() == 0;
  const int32_t needed = is_full ? num_beams : num_beams - num_sources;
  return needed - blocks.pool().num_free() - freed.count();
}

std::vector<int32_t> MoveBeams(const SequencePtr& leader, BlockManager* blocks,
                               std::vector<BlockCopyOp>* copies) {
  BeamGroup& group = *leader->beam.group;
  const std::vector<int32_t> sources = std::exchange(group.sources, {});
  const std::vector<int32_t> before = std::exchange(group.places, std::vector<int32_t>(sources.size(), -1));
  std::vector<bool> is_taken(group.is_sent.size(), false);
  for (size_t i = 0; i < sources.size(); ++i) {
    const int32_t place = before[sources[i]];
    if (!is_taken[place]) group.places[i] = place;
    is_taken[place] = true;
  }
  const bool branches = std::count(group.places.begin(), group.places.end(), -1) > 0;
  if (!is_taken[0] && !branches) {
    const int32_t place = std::exchange(group.places[0], 0);
    SwapWithLeader(leader.get(), place, blocks);
    is_taken[0] = true;
    is_taken[place] = false;
  }
  for (const int32_t place : before) {
    if (!is_taken[place]) blocks->Free(BeamIn(leader, place)->id);  // no chosen beam needs the blocks
  }
  std::vector<int32_t> copied(sources.size(), -1);
  for (size_t i = 0; i < sources.size(); ++i) {
    if (group.places[i] < 0) {
      const auto free = std::find(is_taken.begin(), is_taken.end(), false);
      group.places[i] = static_cast<int32_t>(free - is_taken.begin());
      *free = true;
      copied[i] = before[sources[i]];
      CopyBeam(*BeamIn(leader, copied[i]), BeamIn(leader, group.places[i]).get(), blocks, copies);
    }
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    Sequence& beam = *BeamIn(leader, group.places[i]);
    beam.tokens.resize(leader->num_computed);
    beam.tokens.push_back(group.search.live()[i].outputs.back());
  }
  for (BeamGroup::Replay& replay : group.replays) replay = {};
  return copied;
}

void NoteBeam(ScheduledEntry* entry) {
  const int32_t place = entry->sequence->beam.place;
  if (place > 0) entry->leader = entry->sequence->beam.leader.lock();
  const std::vector<int32_t>& places = entry->owner()->beam.group->places;
  entry->beam = static_cast<int32_t>(std::find(places.begin(), places.end(), place) - places.begin());
}

bool HasAdvanced(const Sequence& leader) {
  return leader.beam.group != nullptr && leader.beam.group->num_candidates == 0 && !leader.finished();
}

absl::Status CheckGroup(const Sequence& leader, const BlockManager& blocks) {
  const BeamGroup& group = *leader.beam.group;
  std::vector<bool> is_live(group.others.size() + 1, false);
  for (const int32_t place : group.places) is_live[place] = true;
  for (const SequencePtr& other : group.others) {
    if (blocks.HasTable(other->id) != is_live[other->beam.place])
      return absl::InternalError(absl::StrCat("a dead beam of sequence ", leader.id, " has blocks"));
    if (!is_live[other->beam.place]) continue;
    const int64_t capacity = static_cast<int64_t>(blocks.Table(other->id).size()) * blocks.block_size();
    if (capacity < other->num_computed)
      return absl::InternalError(absl::StrCat("a beam of sequence ", leader.id, " has too few blocks"));
  }
  return absl::OkStatus();
}

}  // namespace somnus
