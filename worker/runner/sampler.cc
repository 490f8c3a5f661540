#include "worker/runner/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "checkpoint/model_config.h"
#include "worker/runner/logit_edits.h"

namespace somnus {
namespace {

void FillLogprobs(int32_t token, float logprob, int32_t rank, absl::Span<const ScoredToken> top,
                  v1::StepLogprobs* out) {
  out->add_token_ids(token);
  out->add_logprobs(logprob);
  out->set_rank(rank);
  for (const ScoredToken& other : top) {
    out->add_token_ids(other.id);
    out->add_logprobs(other.value);
  }
}

// A bitmap of the vocabulary is staged in one piece.
static_assert(kMaxVocabSize / 8 <= SideStage::kMaxPiece);

absl::Status LogitsNotFiniteError() {
  return absl::InternalError("the model's logits are not finite numbers");
}

// The error of a row that has no token.
absl::Status NoTokenError(int32_t token) {
  if (token != kNoTokenAllowed) return LogitsNotFiniteError();
  return absl::OutOfRangeError(
      "allowed_token_ids, bad_words, logit_bias, min_tokens and the grammar leave no token to choose");
}

}  // namespace

void AddSlotError(int32_t slot, const absl::Status& error, v1::StepReply* reply) {
  v1::SlotError* message = reply->add_slot_errors();
  message->set_slot(slot);
  message->set_code(error.raw_code());
  message->set_message(std::string(error.message()));
}

void SampledRows::FillReply(v1::StepReply* reply) const {
  int64_t next_raw = 0;
  bool counts = true;
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool has_logprobs = num_logprobs[i] >= 0;
    const int64_t raw = has_logprobs ? next_raw++ : 0;
    // Further rows of a draft count as long as what was sampled before them is what it has.
    const bool is_first = i == 0 || rows[i - 1].slot != rows[i].slot;
    counts = is_first || (counts && tokens[i - 1] == rows[i - 1].guess);
    if (!counts) continue;
    // The chosen token's own logit may be finite where the row's sum is not: then its log-probability is NaN.
    const bool good = tokens[i] >= 0 && !(has_logprobs && std::isnan(logprobs[raw]));
    if (!good) {
      // Behind a token that counts, the sequence's next step finds it again.
      if (is_first) AddSlotError(rows[i].slot, NoTokenError(tokens[i]), reply);
      counts = false;
      continue;
    }
    v1::SampledToken* token = reply->add_tokens();
    token->set_slot(rows[i].slot);
    token->set_token_id(tokens[i]);
    if (!has_logprobs) continue;
    const int64_t alternatives = std::min<int64_t>(num_logprobs[i], top_stride);
    FillLogprobs(tokens[i], logprobs[raw], ranks[raw],
                 {top + raw * top_stride, static_cast<size_t>(alternatives)}, token->mutable_logprobs());
  }
}

Sampler::Sampler(const BatchLimits& limits, int64_t max_rows, MirroredBlock* inputs, MirroredBlock* results)
    : limits_(limits), max_rows_(max_rows) {
  const int64_t num_samples = limits.max_num_seqs + kMaxStepDraftTokens;
  sample_rows_ = inputs->Take<SampleRow>(num_samples);
  penalties_ = inputs->Take<PenaltyRow>(num_samples);
  raw_rows_ = inputs->Take<int32_t>(num_samples);
  raw_ids_ = inputs->Take<int32_t>(num_samples);
  count_slots_ = inputs->Take<int32_t>(num_samples);
  tokens_ = results->Take<int32_t>(num_samples);
  logprobs_ = results->Take<float>(num_samples);
  ranks_ = results->Take<int32_t>(num_samples);
  top_ = results->Take<ScoredToken>(num_samples * kMaxStepLogprobs);
  prompt_logprobs_ = prompt_results_.Take<float>(max_rows);
  prompt_ranks_ = prompt_results_.Take<int32_t>(max_rows);
  prompt_top_ = prompt_results_.Take<ScoredToken>(max_rows * kMaxStepLogprobs);
}

void Sampler::Carve(Carver* carver, const Device& device) {
  raw_ = carver->TakeMatrix(DataType::kF32, max_rows_, limits_.vocab_size);
  const int64_t slots = limits_.max_num_seqs, words = (limits_.vocab_size + 31) / 32;
  counts_.vocab = limits_.vocab_size;
  if (!device.asynchronous()) return;  // see AllocateHostCounts
  counts_.outputs = carver->Take<int32_t>(slots * limits_.vocab_size);
  counts_.in_prompt = carver->Take<uint32_t>(slots * words);
}

absl::Status Sampler::AllocateHostCounts() {
  const int64_t slots = limits_.max_num_seqs, words = (limits_.vocab_size + 31) / 32;
  host_counts_.reset();  // first: the pages that were touched need not be kept, since no slot is in use
  host_counts_.reset(std::calloc(slots * (limits_.vocab_size + words), sizeof(int32_t)));
  if (host_counts_ == nullptr) {
    return absl::ResourceExhaustedError("no host memory for the token counts of max_num_seqs sequences");
  }
  counts_.outputs = static_cast<int32_t*>(host_counts_.get());
  counts_.in_prompt = reinterpret_cast<uint32_t*>(counts_.outputs + slots * limits_.vocab_size);
  return absl::OkStatus();
}

absl::Status Sampler::Bind(Device* device, void* prompt_results) {
  device_ = device;
  if (!device->asynchronous()) RETURN_IF_ERROR(AllocateHostCounts());
  return prompt_results_.Bind(device, prompt_results);
}

void Sampler::Build(absl::Span<const LogitRow> rows, const BatchState& state, bool logprobs,
                    bool awaits_masks) {
  rows_.assign(rows.begin(), rows.end());
  num_logprobs_.clear();
  places_.clear();
  num_raw_ = num_raw_queued_ = top_stride_ = 0;
  row_masks_.Clear();
  plain_greedy_ = !awaits_masks;
  any_penalties_ = false;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Slot& slot = state.slot(rows[i].slot);
    const SlotSampling& s = *slot.sampling;
    plain_greedy_ &= IsPlainGreedy(slot, rows[i].position + 1);
    any_penalties_ |= s.has_penalties();
    sample_rows_.host()[i] = {s.temperature, s.top_p, s.top_k, s.min_p, slot.seed, rows[i].position + 1};
    const bool continues = s.has_penalties() && i > 0 && rows[i - 1].slot == rows[i].slot;
    places_.push_back(continues ? places_[i - 1] + 1 : 0);
    penalties_.host()[i] = PenaltyOf(slot, continues ? -1 : rows[i].slot);
    count_slots_.host()[i] = rows[i].has_draft ? -1 : penalties_.host()[i].slot;
    num_logprobs_.push_back(logprobs ? s.num_logprobs : -1);
    if (num_logprobs_.back() < 0) continue;
    raw_rows_.host()[num_raw_] = static_cast<int32_t>(static_cast<int64_t>(i) % max_rows_);
    raw_ids_.host()[num_raw_] = -1 - static_cast<int32_t>(i);
    top_stride_ = std::max<int64_t>(top_stride_, std::min(s.num_logprobs, limits_.vocab_size));
    ++num_raw_;
  }
}

absl::Status Sampler::QueueCounts(const BatchState& state, SideStage* side) {
  for (const int32_t index : state.added_slots()) {
    const Slot& slot = state.slot(index);
    if (!slot.sampling->has_penalties()) continue;
    ASSIGN_OR_RETURN(const int32_t* cleared, side->Stage(&index, 1));
    ClearTokenCounts(*device_, counts_, cleared, 1);
    RETURN_IF_ERROR(side->ForEachPiece(
        slot.tokens.data(), slot.num_prompt_tokens,
        [&](int64_t, const int32_t* ids, int64_t n) { MarkPromptTokens(*device_, counts_, index, ids, n); }));
    const int32_t num_outputs = slot.num_outputs() - slot.num_drafts;
    const std::vector<int32_t> slots(num_outputs, index);
    RETURN_IF_ERROR(side->ForEachPiece(slot.tokens.data() + slot.num_prompt_tokens, num_outputs,
                                       [&](int64_t first, const int32_t* ids, int64_t n) {
                                         absl::StatusOr<const int32_t*> staged =
                                             side->Stage(slots.data() + first, n);
                                         if (staged.ok()) CountTokens(*device_, counts_, *staged, ids, n);
                                       }));
  }
  return absl::OkStatus();
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

// At each token of a draft those before it count as outputs. The slot's next step, which names its input,
// counts anew.
absl::Status Sampler::QueuePenalties(const TensorView& logits, int64_t first, const BatchState& state,
                                     SideStage* side) {
  ApplyPenalties(*device_, logits, penalties_.device() + first, counts_);
  const auto places = places_.begin() + first;
  const int32_t last = *std::max_element(places, places + logits.rows);
  for (int32_t place = 1; place <= last; ++place) {
    std::vector<PenaltyRow> penalties(logits.rows, PenaltyRow{-1, 1, 0, 0});
    std::vector<int32_t> slots, ids;
    for (int64_t i = 0; i < logits.rows; ++i) {
      if (places[i] != place) continue;
      slots.push_back(rows_[first + i].slot);
      ids.push_back(rows_[first + i - 1].guess);
      penalties[i] = PenaltyOf(state.slot(slots.back()), slots.back());
    }
    if (slots.empty()) continue;
    const auto count = static_cast<int64_t>(slots.size());
    ASSIGN_OR_RETURN(const int32_t* staged_slots, side->Stage(slots.data(), count));
    ASSIGN_OR_RETURN(const int32_t* staged_ids, side->Stage(ids.data(), count));
    ASSIGN_OR_RETURN(const PenaltyRow* staged, side->Stage(penalties.data(), logits.rows));
    CountTokens(*device_, counts_, staged_slots, staged_ids, count);
    ApplyPenalties(*device_, logits, staged, counts_);
  }
  return absl::OkStatus();
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
  if (any_penalties_) RETURN_IF_ERROR(QueuePenalties(logits, first, state, side));
  Sample(*device_, logits, sample_rows_.device() + first, tokens_.device() + first);
  if (num_raw == 0) return absl::OkStatus();

  int32_t* const ids = raw_ids_.device() + raw_begin;
  ResolveTokens(*device_, ids, num_raw, tokens_.device());
  LogProbs(*device_, raw, ids, top_stride_, logprobs_.device() + raw_begin, ranks_.device() + raw_begin,
           top_stride_ > 0 ? top_.device() + raw_begin * top_stride_ : nullptr);
  return absl::OkStatus();
}

void Sampler::QueueFinish(const int32_t* slots, int32_t* last_tokens) {
  const int64_t n = static_cast<int64_t>(rows_.size());
  ScatterTokens(*device_, slots, tokens_.device(), n, last_tokens);
  if (any_penalties_) CountTokens(*device_, counts_, count_slots_.device(), tokens_.device(), n);
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

absl::Status Sampler::PromptLogprobs(const TensorView& logits, absl::Span<const LogitRow> rows,
                                     const BatchState& state, SideStage* side, v1::StepReply* reply) {
  prompt_ids_.clear();
  int64_t stride = 0;
  for (const LogitRow& row : rows) {
    const Slot& slot = state.slot(row.slot);
    prompt_ids_.push_back(slot.tokens[row.position + 1]);
    stride = std::max<int64_t>(stride, std::min<int64_t>(slot.sampling->num_prompt_logprobs, logits.cols));
  }
  ASSIGN_OR_RETURN(const int32_t* ids, side->Stage(prompt_ids_.data(), static_cast<int64_t>(rows.size())));
  LogProbs(*device_, logits, ids, stride, prompt_logprobs_.device(), prompt_ranks_.device(),
           stride > 0 ? prompt_top_.device() : nullptr);
  prompt_results_.Download(prompt_results_.bytes());
  RETURN_IF_ERROR(device_->Synchronize());
  for (size_t i = 0; i < rows.size(); ++i) {
    const LogitRow& row = rows[i];
    const int last = reply->prompt_logprobs_size() - 1;
    // Rows of a sequence come one after another; a piece may continue the sequence of the piece before.
    v1::PromptLogprobs* entry = last >= 0 && reply->prompt_logprobs(last).slot() == row.slot
                                    ? reply->mutable_prompt_logprobs(last)
                                    : nullptr;
    if (entry == nullptr) {
      entry = reply->add_prompt_logprobs();
      entry->set_slot(row.slot);
    }
    if (std::isnan(prompt_logprobs_.host()[i])) AddSlotError(row.slot, LogitsNotFiniteError(), reply);
    const int64_t wanted = std::min<int64_t>(state.slot(row.slot).sampling->num_prompt_logprobs, stride);
    FillLogprobs(prompt_ids_[i], prompt_logprobs_.host()[i], prompt_ranks_.host()[i],
                 {prompt_top_.host() + i * stride, static_cast<size_t>(wanted)}, entry->add_positions());
  }
  return absl::OkStatus();
}

}  // namespace somnus
