#include "worker/runner/draft_inputs.h"

#include <algorithm>

namespace somnus {
namespace {

// The place of a position in the cache, counted over all blocks.
int32_t PlaceOf(absl::Span<const int32_t> block_ids, int32_t position, int32_t block_size) {
  return block_ids[static_cast<size_t>(position / block_size)] * block_size + position % block_size;
}

}  // namespace

CatchUpInputs::CatchUpInputs(const BatchLimits& limits) : block_size_(limits.block_size) {
  query_start_ = inputs_.Take<int32_t>(limits.max_num_seqs + 1);
  slots_ = inputs_.Take<int32_t>(limits.max_num_seqs);
  context_len_ = inputs_.Take<int32_t>(limits.max_num_seqs);
  token_ids_ = inputs_.Take<int32_t>(limits.max_num_batched_tokens);
  positions_ = inputs_.Take<int32_t>(limits.max_num_batched_tokens);
  slot_mapping_ = inputs_.Take<int32_t>(limits.max_num_batched_tokens);
}

void CatchUpInputs::AddPiece(const MissingTokens& piece, AttentionBatch* batch) {
  const auto count = static_cast<int32_t>(piece.token_ids.size());
  for (int32_t i = 0; i < count; ++i) {
    const int32_t position = piece.position + i;
    const int64_t row = batch->num_tokens + i;
    token_ids_.host()[row] = piece.token_ids[static_cast<size_t>(i)];
    positions_.host()[row] = position;
    slot_mapping_.host()[row] = PlaceOf(piece.block_ids, position, block_size_);
  }
  slots_.host()[batch->num_seqs] = piece.slot;
  context_len_.host()[batch->num_seqs] = piece.position + count;
  batch->num_tokens += count;
  query_start_.host()[++batch->num_seqs] = static_cast<int32_t>(batch->num_tokens);
  batch->max_query_len = std::max<int64_t>(batch->max_query_len, count);
  batch->max_context_len = std::max<int64_t>(batch->max_context_len, piece.position + count);
}

StepInput CatchUpInputs::Upload(absl::Span<const MissingTokens> pieces, int64_t num_decodes) {
  inputs_.Turn();
  StepInput input;
  AttentionBatch& batch = input.batch;
  batch.num_decodes = num_decodes;
  query_start_.host()[0] = 0;
  for (const MissingTokens& piece : pieces) AddPiece(piece, &batch);
  inputs_.Upload(inputs_.bytes());
  input.token_ids = token_ids_.device();
  batch.query_start = query_start_.device();
  batch.context_len = context_len_.device();
  batch.positions = positions_.device();
  batch.slot_mapping = slot_mapping_.device();
  return input;
}

GuessInputs::GuessInputs(const BatchLimits& limits, int32_t num_guesses)
    : max_num_seqs_(limits.max_num_seqs), block_size_(limits.block_size) {
  const int64_t num_seqs = limits.max_num_seqs, num_rows = num_seqs * num_guesses;
  query_start_ = inputs_.Take<int32_t>(num_seqs + 1);
  slots_ = inputs_.Take<int32_t>(num_seqs);
  last_context_ = inputs_.Take<int32_t>(num_seqs);
  tokens_ = inputs_.Take<int32_t>(num_seqs);
  positions_ = inputs_.Take<int32_t>(num_rows);
  context_len_ = inputs_.Take<int32_t>(num_rows);
  slot_mapping_ = inputs_.Take<int32_t>(num_rows);
}

void GuessInputs::Upload(absl::Span<const ProposingSlot> sequences, absl::Span<const size_t> order) {
  inputs_.Turn();
  query_start_.host()[0] = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const ProposingSlot& sequence = sequences[order[i]];
    query_start_.host()[i + 1] = static_cast<int32_t>(i + 1);
    slots_.host()[i] = sequence.slot;
    last_context_.host()[i] = sequence.position + sequence.count;
    tokens_.host()[i] = sequence.token;
    for (int32_t guess = 0; guess < sequence.count; ++guess) {
      const int32_t position = sequence.position + guess;
      const size_t row = static_cast<size_t>(guess) * max_num_seqs_ + i;
      positions_.host()[row] = position;
      context_len_.host()[row] = position + 1;
      slot_mapping_.host()[row] = PlaceOf(sequence.block_ids, position, block_size_);
    }
  }
  inputs_.Upload(inputs_.bytes());
}

StepInput GuessInputs::Pass(int32_t index, int64_t count, const int32_t* token_ids) const {
  const int64_t first_row = int64_t{index} * max_num_seqs_;
  StepInput input;
  input.token_ids = token_ids == nullptr ? tokens_.device() : token_ids;
  AttentionBatch& batch = input.batch;
  batch.num_seqs = batch.num_tokens = batch.num_decodes = count;
  batch.max_query_len = 1;
  batch.max_context_len = *std::max_element(last_context_.host(), last_context_.host() + count);
  batch.query_start = query_start_.device();
  batch.context_len = context_len_.device() + first_row;
  batch.positions = positions_.device() + first_row;
  batch.slot_mapping = slot_mapping_.device() + first_row;
  return input;
}

}  // namespace somnus
