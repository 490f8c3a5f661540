#pragma once
// The arrays that a draft model's ops read, laid out on the host and copied to the device: for tokens that
// the draft model has missed, and for the guesses of a sequence's next tokens.
//
// Memory on the device is carved from the draft model's workspace. Used by the runner thread alone.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/model/carver.h"
#include "worker/model/decoder_model.h"
#include "worker/runner/batch_state.h"
#include "worker/runner/staging.h"

namespace somnus {

// A sequence that gets guesses for the next tokens.
struct ProposingSlot {
  int32_t slot = 0;
  int32_t token = 0;                    // the last token
  int32_t position = 0;                 // of the last token, which is not computed yet
  int32_t count = 0;                    // tokens to guess, at least 1
  absl::Span<const int32_t> block_ids;  // with the places of the token and of all guesses but the last
};

// Known tokens of a sequence that follow each other.
struct MissingTokens {
  int32_t slot = 0;
  int32_t position = 0;  // of the first
  absl::Span<const int32_t> token_ids;
  absl::Span<const int32_t> block_ids;  // of the sequence
};

// The inputs of a forward pass over missing tokens.
class CatchUpInputs {
 public:
  explicit CatchUpInputs(const BatchLimits& limits);

  void Carve(Carver* carver) { inputs_.Carve(carver); }
  absl::Status Bind(Device* device) { return inputs_.Bind(device); }

  // Lays out the pieces, of which the first `num_decodes` have a single token, and queues the copy to the
  // device. The device must be done with the inputs before. Returns the forward pass's input without block
  // tables, valid until the next call.
  StepInput Upload(absl::Span<const MissingTokens> pieces, int64_t num_decodes);
  // [pieces], on the device.
  const int32_t* slots() const { return slots_.device(); }

 private:
  void AddPiece(const MissingTokens& piece, AttentionBatch* batch);

  const int32_t block_size_;
  MirroredBlock inputs_;
  MirroredBlock::Array<int32_t> query_start_;                           // [S + 1]
  MirroredBlock::Array<int32_t> slots_, context_len_;                   // [S]
  MirroredBlock::Array<int32_t> token_ids_, positions_, slot_mapping_;  // [max_num_batched_tokens]
};

// The inputs of the passes that guess: a pass for each further token, all copied at once.
class GuessInputs {
 public:
  // num_guesses: the most tokens that are guessed for a sequence.
  GuessInputs(const BatchLimits& limits, int32_t num_guesses);

  void Carve(Carver* carver) { inputs_.Carve(carver); }
  absl::Status Bind(Device* device) { return inputs_.Bind(device); }

  // Lays out the sequences in the order of `order`, the longest first, and queues the copy to the device.
  void Upload(absl::Span<const ProposingSlot> sequences, absl::Span<const size_t> order);
  // The input, without block tables, of the pass that guesses the tokens `index` places behind the last
  // tokens of the first `count` sequences. token_ids: [count], on the device; null: the last known tokens.
  StepInput Pass(int32_t index, int64_t count, const int32_t* token_ids) const;

  // [S], on the device: the sequences' slots, and the tokens that are in the cache behind the last guess.
  const int32_t* slots() const { return slots_.device(); }
  const int32_t* last_context() const { return last_context_.device(); }
  // [S], on the device: 0, 1, 2, ...
  const int32_t* row_numbers() const { return query_start_.device(); }

 private:
  const int32_t max_num_seqs_;
  const int32_t block_size_;
  MirroredBlock inputs_;
  MirroredBlock::Array<int32_t> query_start_;                             // [S + 1]: 0, 1, 2, ...
  MirroredBlock::Array<int32_t> slots_, last_context_;                    // [S]
  MirroredBlock::Array<int32_t> tokens_;                                  // [S]: the last known tokens
  MirroredBlock::Array<int32_t> positions_, context_len_, slot_mapping_;  // [num_guesses, S]
};

}  // namespace somnus
