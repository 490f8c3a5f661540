#pragma once
// The small model whose guesses the large one checks (speculative decoding), on one rank. The ranks divide it
// as they divide the large one, with the same communicator, and all of them call the same at the same time.
//
// Its KV cache has a part for every block of the large model's cache, and the same block tables. It computes
// nothing of a sequence, not even the prompt, before it is asked for guesses; then all that is missing, as
// many tokens in a step as a step may have (CatchUp). So a sequence that asks for none costs nothing, and one
// that asks now and then a pass in many steps. Which tokens a block has, draft_blocks.h knows. Propose goes
// on from there, one token after the other. It writes behind what is computed, where whatever is computed for
// those places later overwrites it before anything reads it.
//
// Memory as ModelRunner's, under the same tags. Borrowed, and must outlive it: device, communicator,
// allocator. Used by the runner thread alone.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "allocator/sleepable_allocator.h"
#include "checkpoint/checkpoint.h"
#include "kernels/ops.h"
#include "worker/comm/communicator.h"
#include "worker/model/decoder_model.h"
#include "worker/model/kv_scales.h"
#include "worker/model/weight_plan.h"
#include "worker/runner/batch_state.h"
#include "worker/runner/logits_head.h"
#include "worker/runner/model_runner.h"
#include "worker/runner/small_tables.h"
#include "worker/runner/staging.h"

namespace somnus {

// A sequence whose next tokens are guessed.
struct ProposingSlot {
  int32_t slot = 0;
  int32_t token = 0;                    // its last one
  int32_t position = 0;                 // of that token, which is not computed yet
  int32_t count = 0;                    // tokens to guess, at least 1
  absl::Span<const int32_t> block_ids;  // with the places of the token and of all guesses but the last
};

// Tokens of a sequence that follow each other, all of them known.
struct MissingTokens {
  int32_t slot = 0;
  int32_t position = 0;  // of the first
  absl::Span<const int32_t> token_ids;
  absl::Span<const int32_t> block_ids;  // of the sequence
};

class DraftModel {
 public:
  // Reads options.draft_model_path, and allocates `weights` and `workspace`. An error names --draft-model.
  // limits: the large model's.
  static absl::StatusOr<std::unique_ptr<DraftModel>> Load(const ModelRunnerOptions& options,
                                                          const BatchLimits& limits, Device* device,
                                                          Communicator* communicator,
                                                          SleepableAllocator* allocator);
  ~DraftModel();
  DraftModel(const DraftModel&) = delete;

  // Reads the weights again, over old ones or into memory that was discarded and mapped again. An error
  // leaves their contents undefined.
  absl::Status ReadWeights();
  // After Load and any sleep, once all memory is there: computes the small tables.
  absl::Status BindWorkspace();
  std::string weight_types() const { return plan_.DescribeTypes(); }
  // The bytes of workspace that ops need, which is the device's and shared.
  int64_t ops_workspace_bytes() const;

  // Its part of a block: all layers, K and V, this rank's heads; 0 where it has none.
  int64_t kv_block_bytes() const { return layer_block_bytes_ * config_.num_layers; }
  // As ModelRunner's; an error has changed nothing.
  absl::Status AllocateBlocks(int32_t num_blocks, int32_t num_mapped_blocks);
  absl::Status ResizeBlocks(int32_t num_mapped_blocks);
  absl::Status FreeBlocks();
  // One per layer; none where this rank has no heads.
  absl::Span<const KvCacheView> kv_cache() const { return context_.kv_cache; }

  // Computes these, at most one piece of each slot and max_num_batched_tokens in all, so that the cache has
  // their keys and values. Waits for the device. slot_tables: as Propose. Only collectives can fail.
  absl::Status CatchUp(std::vector<MissingTokens> pieces, const int32_t* slot_tables);
  // The likeliest tokens behind each sequence, in the order of `sequences`; fewer than its count where logits
  // are not finite. At most max_num_seqs sequences of at most num_speculative_tokens. Waits for the device.
  // slot_tables: [max_num_seqs, max_blocks_per_seq], on the device.
  absl::StatusOr<std::vector<std::vector<int32_t>>> Propose(absl::Span<const ProposingSlot> sequences,
                                                            const int32_t* slot_tables);

 private:
  DraftModel(const Checkpoint& checkpoint, const ModelRunnerOptions& options, const BatchLimits& limits,
             Device* device, Communicator* communicator, SleepableAllocator* allocator);
  absl::Status Init(const Checkpoint& checkpoint);
  // Where the checkpoint's weights lie, once they are known to be of this model.
  absl::StatusOr<WeightPlan> PlanWeights(const Checkpoint& checkpoint) const;
  int64_t CarveWorkspace(void* base);
  // Fills the inputs for the sequences in the order of `order`, the longest first.
  void BuildInputs(absl::Span<const ProposingSlot> sequences, absl::Span<const size_t> order);
  // Guesses the tokens `index` places behind the last ones of the first `count` sequences.
  absl::Status ProposeNext(int32_t index, int64_t count);

  const ModelConfig config_;
  const ModelRunnerOptions options_;
  const BatchLimits limits_;
  Device* const device_;
  Communicator* const communicator_;
  SleepableAllocator* const allocator_;
  const ModelShards shards_;
  const int64_t layer_block_bytes_;
  const int64_t logit_rows_;

  WeightPlan plan_;
  std::vector<KvScales> kv_scales_;  // by layer; empty: all 1
  void* weights_region_ = nullptr;
  void* workspace_region_ = nullptr;
  void* kv_region_ = nullptr;

  // Views into workspace.
  int32_t* block_tables_ = nullptr;  // [S, max_blocks_per_seq]
  int32_t* proposed_ = nullptr;      // [num_speculative_tokens, S]
  void* inputs_memory_ = nullptr;
  void* missing_memory_ = nullptr;

  SmallTables tables_;
  ModelContext context_;
  std::unique_ptr<DecoderModel> model_;
  LogitsHead head_;

  // Of one Propose, S sequences at most. Those with a row for each guess have num_speculative_tokens rows.
  MirroredBlock inputs_;
  MirroredBlock::Array<int32_t> query_start_;   // [S + 1]: 0, 1, 2, ...
  MirroredBlock::Array<int32_t> slots_;         // [S]
  MirroredBlock::Array<int32_t> last_context_;  // [S]: tokens in the cache behind the last guess
  MirroredBlock::Array<int32_t> tokens_;        // [S]: the last known ones
  MirroredBlock::Array<int32_t> positions_, context_len_, slot_mapping_;  // [num_speculative_tokens, S]

  struct {
    MirroredBlock inputs;
    MirroredBlock::Array<int32_t> query_start;                         // [S + 1]
    MirroredBlock::Array<int32_t> slots, context_len;                  // [S]
    MirroredBlock::Array<int32_t> token_ids, positions, slot_mapping;  // [max_num_batched_tokens]
  } missing_;                                                          // of one CatchUp
};

}  // namespace somnus
