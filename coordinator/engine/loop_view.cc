#include "coordinator/engine/loop_view.h"

#include <algorithm>

#include "base/null_block.h"

namespace somnus {
namespace {

// The pool's vector has the null block at its beginning.
char LetterOf(const KvBlock& block, int32_t limit) {
  constexpr int32_t kMostCounted = 9;
  if (block.ref_count > kMostCounted) return '+';
  if (block.ref_count > 0) return static_cast<char>('0' + block.ref_count);
  if (block.id >= limit) return 'x';
  return block.content_id != 0 ? 'c' : '.';
}

void DrawBlocks(const BlockPool& pool, EngineView* view) {
  const int32_t num_blocks = pool.size() - 1;
  view->blocks_per_cell = std::max(1, (num_blocks + kMaxViewedBlocks - 1) / kMaxViewedBlocks);
  view->blocks.reserve(num_blocks / view->blocks_per_cell + 1);
  for (int32_t id = kNullBlock + 1; id <= num_blocks; id += view->blocks_per_cell)
    view->blocks += LetterOf(*pool.block(id), pool.limit());
}

const char* StateOf(const Sequence& sequence) {
  if (sequence.state == SequenceState::kRunning) return "running";
  if (sequence.held.is_suspended) return "suspended";
  if (sequence.held.is_swapped) return "swapped";
  return sequence.was_scheduled ? "preempted" : "waiting";
}

RequestView ViewOf(const Sequence& sequence, const BlockManager& blocks) {
  const EngineRequest& request = sequence.request;
  RequestView view = {.id = request.name(),
                      .state = StateOf(sequence),
                      .arrival = request.arrival,
                      .num_prompt_tokens = sequence.prompt_len(),
                      .num_computed_tokens = sequence.num_known_computed(),
                      .num_output_tokens = sequence.num_outputs(),
                      .num_preemptions = sequence.num_preemptions};
  if (blocks.HasTable(sequence.id)) view.num_blocks = blocks.Capacity(sequence.id) / blocks.block_size();
  return view;
}

template <typename Sequences>
void AddRequests(const Sequences& sequences, const BlockManager& blocks, EngineView* view) {
  for (auto it = sequences.begin(); it != sequences.end(); ++it) {
    if (static_cast<int32_t>(view->requests.size()) >= view->max_requests) return;
    view->requests.push_back(ViewOf(*it->second, blocks));
  }
}

}  // namespace

EngineView DrawView(const Scheduler& scheduler, int32_t replica, int32_t max_requests, MonotonicTime now) {
  EngineView view;
  view.max_requests = max_requests;
  view.taken = now;
  view.replica = replica;
  DrawBlocks(scheduler.blocks().pool(), &view);
  AddRequests(scheduler.sequences().running(), scheduler.blocks(), &view);
  AddRequests(scheduler.sequences().waiting(), scheduler.blocks(), &view);
  return view;
}

}  // namespace somnus
