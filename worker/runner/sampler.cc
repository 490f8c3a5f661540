#include "worker/runner/sampler.h"

#include <algorithm>

#include "base/status_macros.h"
#include "checkpoint/model_config.h"
#include "worker/runner/logit_edits.h"

namespace somnus {

// A bitmap of the vocabulary is staged in a single piece.
static_assert(kMaxVocabSize / 8 <= SideStage::kMaxPiece);

Sampler::Sampler(const BatchLimits& limits, int64_t max_rows, MirroredBlock* inputs, MirroredBlock* results)
    : limits_(limits), max_rows_(max_rows), penalties_(limits, inputs) {
  const int64_t num_samples = limits.max_num_seqs + kMaxStepDraftTokens;
  sample_rows_ = inputs->Take<SampleRow>(num_samples);
  raw_rows_ = inputs->Take<int32_t>(num_samples);
  raw_ids_ = inputs->Take<int32_t>(num_samples);
  tokens_ = results->Take<int32_t>(num_samples);
  logprobs_ = results->Take<float>(num_samples);
  ranks_ = results->Take<int32_t>(num_samples);
  top_ = results->Take<ScoredToken>(num_samples * kMaxStepLogprobs);
}

void Sampler::Carve(Carver* carver, const Device& device) {
  raw_ = carver->TakeMatrix(DataType::kF32, max_rows_, limits_.vocab_size);
  penalties_.Carve(carver, device);
}

absl::Status Sampler::Bind(Device* device) {
  device_ = device;
  return penalties_.Bind(device);
}

void Sampler::Build(absl::Span<const LogitRow> rows, const BatchState& state, bool logprobs,
                    bool awaits_masks) {
  rows_.assign(rows.begin(), rows.end());
  num_logprobs_.clear();
  num_raw_ = num_raw_queued_ = top_stride_ = 0;
  row_masks_.Clear();
  plain_greedy_ = !awaits_masks;
  penalties_.Build(rows_, state);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Slot& slot = state.slot(rows[i].slot);
    const SlotSampling& s = *slot.sampling;
    plain_greedy_ &= IsPlainGreedy(slot, rows[i].position + 1);
    sample_rows_.host()[i] = {s.temperature, s.top_p, s.top_k, s.min_p, slot.seed, rows[i].position + 1};
    num_logprobs_.push_back(logprobs ? s.num_logprobs : -1);
    if (num_logprobs_.back() < 0) continue;
    raw_rows_.host()[num_raw_] = static_cast<int32_t>(static_cast<int64_t>(i) % max_rows_);
    raw_ids_.host()[num_raw_] = -1 - static_cast<int32_t>(i);
    top_stride_ = std::max<int64_t>(top_stride_, std::min(s.num_logprobs, limits_.vocab_size));
    ++num_raw_;
  }
}

absl::Status Sampler::QueueMasks(const TensorView& logits, int64_t first, const BatchState& state,
                                 SideStage* side) {
  masks_.clear();
  masked_rows_.clear();
  const int64_t words = (limits_.vocab_size + 31) / 32;
  for (int64_t i = 0; i < logits.rows; ++i) {
    const Slot& slot = state.slot(rows_[first + i].slot);
    const bool has_ids = !slot.sampling->allowed_token_ids.empty(), has_mask = row_masks_.has(first + i);
    if (!has_ids && !has_mask) continue;
    masked_rows_.push_back(static_cast<int32_t>(i));
    if (has_ids) {
      AppendAllowedMask(slot, limits_.vocab_size, &masks_);
    } else {
      masks_.resize(masks_.size() + words, ~0u);
    }
    if (has_mask) row_masks_.Intersect(first + i, absl::MakeSpan(masks_).last(words));
  }
  for (size_t i = 0; i < masked_rows_.size(); ++i) {
    ASSIGN_OR_RETURN(const int32_t* row, side->Stage(masked_rows_.data() + i, 1));
    ASSIGN_OR_RETURN(const uint32_t* mask, side->Stage(masks_.data() + i * words, words));
    KeepAllowed(*device_, logits, row, mask, 1);
  }
  return absl::OkStatus();
}

absl::Status Sampler::QueueEdits(const TensorView& logits, int64_t first, const BatchState& state,
                                 SideStage* side) {
  RETURN_IF_ERROR(QueueMasks(logits, first, state, side));
  edits_.clear();
  for (int64_t i = 0; i < logits.rows; ++i) {
    const LogitRow& row = rows_[first + i];
    AppendEdits(state.slot(row.slot), row.position + 1, static_cast<int32_t>(i), &edits_);
  }
  return side->ForEachPiece(
      edits_.data(), static_cast<int64_t>(edits_.size()),
      [&](int64_t, const LogitEdit* edits, int64_t n) { EditLogits(*device_, logits, edits, n); });
}

absl::Status Sampler::QueueSample(const TensorView& logits, int64_t first, const BatchState& state,
                                  SideStage* side) {
  // The raw rows of this piece, copied before the logits are changed.
  int64_t num_raw = 0;
  for (int64_t i = 0; i < logits.rows; ++i) num_raw += num_logprobs_[first + i] >= 0;
  const int64_t raw_begin = num_raw_queued_;
  num_raw_queued_ += num_raw;
  const TensorView raw = FirstRows(raw_, num_raw);
  if (num_raw > 0) GatherRows(*device_, logits, raw_rows_.device() + raw_begin, raw);

  RETURN_IF_ERROR(QueueEdits(logits, first, state, side));
  RETURN_IF_ERROR(penalties_.QueuePenalties(logits, first, state, side));
  Sample(*device_, logits, sample_rows_.device() + first, tokens_.device() + first);
  if (num_raw == 0) return absl::OkStatus();

  int32_t* const ids = raw_ids_.device() + raw_begin;
  ResolveTokens(*device_, ids, num_raw, tokens_.device());
  LogProbs(*device_, raw, ids, top_stride_, logprobs_.device() + raw_begin, ranks_.device() + raw_begin,
           top_stride_ > 0 ? top_.device() + raw_begin * top_stride_ : nullptr);
  return absl::OkStatus();
}

void Sampler::QueueFinish(const int32_t* slots, int32_t* last_tokens) {
  ScatterTokens(*device_, slots, tokens_.device(), static_cast<int64_t>(rows_.size()), last_tokens);
  penalties_.QueueFinish(tokens_.device());
}

int64_t Sampler::results_bytes() const {
  if (num_raw_ == 0) return tokens_.end();
  const int64_t most = (limits_.max_num_seqs + kMaxStepDraftTokens) * int64_t{kMaxStepLogprobs};
  const int64_t unused = most - num_raw_ * top_stride_;
  return top_stride_ > 0 ? top_.end() - unused * static_cast<int64_t>(sizeof(ScoredToken)) : ranks_.end();
}

SampledRows Sampler::TakeResults() {
  SampledRows results;
  results.rows = rows_;
  results.num_logprobs = num_logprobs_;
  results.top_stride = top_stride_;
  results.tokens = tokens_.host();
  results.logprobs = logprobs_.host();
  results.ranks = ranks_.host();
  results.top = top_.host();
  return results;
}

}  // namespace somnus
