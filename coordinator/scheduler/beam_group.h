#pragma once
// The sequences of a beam search, which wait, run and are preempted as a whole: the first sequence, the
// leader, stands for all of them in the scheduler's queues. Plain state, kept by Beams (beams.h), and pure
// functions of it.
//
// A place is a sequence's number in the group: 0 is the leader. While the group runs, each place has a slot
// of the workers, and the places of live beams have a table of blocks. Which beam is in which place changes:
// a beam that goes on stays in its place, and a beam that branches takes a place whose beam is dead.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/block_manager/block_manager.h"
#include "coordinator/scheduler/beam_search.h"
#include "coordinator/scheduler/sequence.h"
#include "coordinator/scheduler/step_ledger.h"

namespace somnus {

struct BeamGroup {
  explicit BeamGroup(BeamSearch beam_search) : search(std::move(beam_search)) {}

  // A place that is computed anew shares its first blocks with another place, the donor, and waits until the
  // donor has filled these blocks.
  struct Replay {
    int32_t donor = 0;  // a place
    int64_t num_shared = 0;
    bool is_ready = true;
  };

  BeamSearch search;
  std::vector<SequencePtr> others;    // places 1, 2, ...; made at the first admission
  std::vector<bool> is_sent;          // by place: the workers know the slot
  std::vector<Replay> replays;        // by place
  std::vector<int32_t> places = {0};  // of the live beams, or, with sources, of the previous beams
  // Not empty: beams have been chosen that no step has yet. By live beam: which previous beam the live beam
  // continues.
  std::vector<int32_t> sources;
  std::vector<Logprobs> candidates = std::vector<Logprobs>(1);  // by live beam; empty: not known yet
  size_t num_candidates = 0;                                    // the known candidates
};

// How many slots a sequence or a group takes.
int32_t NumSlots(const Sequence& sequence);
// Whether tokens of a sequence, or of its group, are pending.
bool HasPending(const Sequence& sequence);
// The sequence, and the other sequences of the same group that have tables.
std::vector<const Sequence*> WithBlocks(const Sequence& sequence, const BlockManager& blocks);
// The same for tables of host blocks; the sequence itself has such a table.
std::vector<const Sequence*> WithHostBlocks(const Sequence& sequence, const BlockManager& blocks);
// Frees the blocks of a sequence, or of a group, whose beams then take the first places.
void FreeBlocks(Sequence* sequence, BlockManager* blocks);

// The following functions are for groups. `leader` is the first sequence.
SequencePtr BeamIn(const SequencePtr& leader, int32_t place);
// Puts the live beams of a group without blocks into the first places.
void ResetBeams(Sequence* leader);
// Takes blocks for all beams of a group that has none; each beam begins with the blocks that it has in common
// with an earlier beam. Returns how many tokens of the first beam are in the cache already; -1, and nothing
// is taken: there are too few blocks.
int64_t TakeReplayBlocks(const SequencePtr& leader, bool use_cache, bool ignore_watermark,
                         BlockManager* blocks);
// Returns how many more blocks an admission would need.
int32_t BeamBlocksMissingToStart(const Sequence& leader, bool use_cache, BlockManager* blocks);
// Returns how many more blocks the chosen beams need for their next token.
int32_t BeamBlocksMissing(const Sequence& leader, const BlockManager& blocks);
// Gives tables to the beams that were chosen, for which there are enough blocks. Blocks of dead beams are
// freed first: no beam that goes on needs them. Where a beam branches, the last, partly filled block is
// copied. Returns, by live beam, the place of which the beam has become a copy; -1: the beam has stayed in
// place.
std::vector<int32_t> MoveBeams(const SequencePtr& leader, BlockManager* blocks,
                               std::vector<BlockCopyOp>* copies);
// Notes in an entry of a step which beam of which group the entry is for.
void NoteBeam(ScheduledEntry* entry);
// Whether the last sample has completed a step of the group; false for other sequences.
bool HasAdvanced(const Sequence& leader);
// Internal unless the places of live beams, and no other places, have tables that hold all computed tokens.
absl::Status CheckGroup(const Sequence& leader, const BlockManager& blocks);

}  // namespace somnus
