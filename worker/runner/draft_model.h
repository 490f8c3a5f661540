#pragma once
// The small model whose guesses the large model checks (speculative decoding), on one rank. The ranks divide
// the draft model as they divide the large model, with the same communicator, and all ranks call the same
// functions at the same time.
//
// The draft model's KV cache has a part for every block of the large model's cache, and the same block
// tables. The draft model computes nothing of a sequence, not even the prompt, before guesses are asked for;
// then all that is missing, as many tokens in a step as a step may have (CatchUp). So a sequence that asks
// for no guesses costs nothing, and a sequence that asks now and then costs a pass in many steps.
// draft_blocks.h knows which tokens a block has. Propose goes on from there, token by token. Propose writes
// behind the computed tokens, where later tokens of the sequence are written before anything reads the
// places.
//
// Memory as in ModelRunner, under the same tags. Borrowed, and must outlive the draft model: device,
// communicator, allocator. Used by the runner thread alone.

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
#include "worker/model/weight_plan.h"
#include "worker/runner/batch_state.h"
#include "worker/runner/draft_inputs.h"
#include "worker/runner/model_runner.h"
#include "worker/runner/rank_model.h"

namespace somnus {

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

  // Reads the weights again, over old weights or into memory that was discarded and mapped again. An error
  // leaves the contents undefined.
  absl::Status ReadWeights();
  // After Load and any sleep, once all memory is there: computes the small tables.
  absl::Status BindWorkspace();
  std::string weight_types() const { return model_.weights().DescribeTypes(); }
  const std::vector<WeightPiece>& weight_pieces() const { return model_.weights().pieces(); }
  // The bytes of workspace that ops need, which is the device's and shared.
  int64_t ops_workspace_bytes() const { return model_.ops_workspace_bytes(); }

  // The draft model's part of a block: all layers, K and V, this rank's heads; 0 on a rank without heads.
  int64_t kv_block_bytes() const { return cache().block_bytes(); }
  // As in RankModel.
  absl::Status AllocateBlocks(int32_t num_blocks, int32_t num_mapped_blocks) {
    return model_.AllocateBlocks(num_blocks, num_mapped_blocks);
  }
  absl::Status ResizeBlocks(int32_t num_mapped_blocks) { return model_.ResizeBlocks(num_mapped_blocks); }
  absl::Status FreeBlocks() { return model_.FreeBlocks(); }
  const KvCache& cache() const { return model_.cache(); }

  // Computes the pieces, at most a piece of each slot and max_num_batched_tokens in all, so that the cache
  // has the keys and values of the tokens. Waits for the device. slot_tables: as in Propose. Only collectives
  // can fail.
  absl::Status CatchUp(std::vector<MissingTokens> pieces, const int32_t* slot_tables);
  // The likeliest tokens behind each sequence, in the order of `sequences`; fewer than the sequence's count
  // where logits are not finite. At most max_num_seqs sequences of at most num_speculative_tokens. Waits for
  // the device. slot_tables: [max_num_seqs, max_blocks_per_seq], on the device.
  absl::StatusOr<std::vector<std::vector<int32_t>>> Propose(absl::Span<const ProposingSlot> sequences,
                                                            const int32_t* slot_tables);

 private:
  DraftModel(const Checkpoint& checkpoint, const ModelRunnerOptions& options, const BatchLimits& limits,
             Device* device, Communicator* communicator, SleepableAllocator* allocator);
  absl::Status Init(const Checkpoint& checkpoint);
  // InvalidArgument unless the checkpoint has the large model's vocabulary.
  absl::Status CheckVocabulary(const Checkpoint& checkpoint) const;
  int64_t CarveWorkspace(void* base);
  void GatherTables(const int32_t* slot_tables, const int32_t* slots, const int32_t* context_len,
                    int64_t num_seqs);
  // Guesses the tokens `index` places behind the last tokens of the first `count` sequences.
  absl::Status ProposeNext(int32_t index, int64_t count);
  // The guesses on the device, for `order` and `most` guesses of each; waits for the device.
  absl::StatusOr<std::vector<std::vector<int32_t>>> ReadProposals(absl::Span<const ProposingSlot> sequences,
                                                                  absl::Span<const size_t> order,
                                                                  int32_t most);
  absl::StatusOr<TensorView> Forward(StepInput input);

  const ModelRunnerOptions options_;
  const BatchLimits limits_;
  Device* const device_;
  Communicator* const communicator_;
  SleepableAllocator* const allocator_;
  RankModel model_;
  CatchUpInputs missing_;
  GuessInputs guesses_;

  void* workspace_region_ = nullptr;
  // Views into workspace.
  int32_t* block_tables_ = nullptr;  // [S, max_blocks_per_seq]
  int32_t* proposed_ = nullptr;      // [num_speculative_tokens, S]
};

}  // namespace somnus
