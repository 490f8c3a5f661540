#include "worker/runner/logits_head.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "proto/check.h"
#include "proto/status_macros.h"

namespace somnus {

int64_t LogitsHead::MaxRows(int64_t vocab_size, int64_t max_num_seqs) {
  constexpr int64_t kBytes = 64 << 20;
  const int64_t affordable = std::max<int64_t>(16, kBytes / (vocab_size * 4));
  return std::min(affordable, std::max<int64_t>(64, max_num_seqs));
}

void LogitsHead::Carve(Carver* carver, const ModelConfig& config, const ModelShards& shards, DataType act,
                       int64_t max_rows) {
  max_rows_ = max_rows;
  rows_ = carver->Take<int32_t>(max_rows);
  gathered_hidden_ = carver->TakeMatrix(act, max_rows, config.embedding_dim);
  local_ = carver->TakeMatrix(DataType::kF32, max_rows, shards.max_vocab_rows);
  best_ = carver->Take<ScoredToken>(max_rows);
  if (shards.world_size == 1) return;
  ranks_logits_ = carver->Take<float>(shards.world_size * max_rows * shards.max_vocab_rows);
  whole_ = carver->TakeMatrix(DataType::kF32, max_rows, config.vocab_size);
  ranks_best_ = carver->Take<ScoredToken>(shards.world_size * max_rows);
}

TensorView LogitsHead::LocalLogits(const TensorView& hidden, absl::Span<const LogitRow> rows) {
  const int64_t count = static_cast<int64_t>(rows.size());
  SOMNUS_CHECK(count > 0 && count <= max_rows_);
  TensorView x = hidden;
  x.rows = count;
  // A decode batch needs every row in order: no copy.
  const bool all = count == hidden.rows && rows[0].row == 0 && rows[count - 1].row == count - 1;
  if (!all) {
    x = FirstRows(gathered_hidden_, count);
    for (int64_t i = 0; i < count; ++i) rows_[i] = rows[i].row;
    GatherRows(*c_->device, hidden, rows_, x);
  }
  TensorView logits = FirstRows(local_, count);
  logits.cols = c_->shards->vocab.size();
  if (logits.cols > 0) Linear(*c_->device, x, c_->weights->head, nullptr, logits);
  return logits;
}

absl::StatusOr<TensorView> LogitsHead::Logits(const TensorView& hidden, absl::Span<const LogitRow> rows) {
  const TensorView local = LocalLogits(hidden, rows);
  const int world_size = c_->communicator->world_size();
  if (world_size == 1) return local;
  RETURN_IF_ERROR(c_->device->Synchronize());
  const int64_t rank_floats = local.rows * local.stride;
  RETURN_IF_ERROR(c_->communicator->AllGather(local.data, rank_floats * 4, ranks_logits_));
  const TensorView whole = FirstRows(whole_, local.rows);
  for (int rank = 0; rank < world_size; ++rank) {
    const Range vocab = ShardRange(c_->config->vocab_size, rank, world_size);
    const float* from = ranks_logits_ + rank * rank_floats;
    for (int64_t row = 0; row < whole.rows; ++row) {
      std::memcpy(whole.row<float>(row) + vocab.begin, from + row * local.stride, vocab.size() * 4);
    }
  }
  return whole;
}

absl::Status LogitsHead::ArgMaxTokens(const TensorView& hidden, absl::Span<const LogitRow> rows,
                                      int32_t* tokens) {
  const TensorView local = LocalLogits(hidden, rows);
  const int world_size = c_->communicator->world_size();
  if (local.cols > 0) {
    ArgMax(*c_->device, local, c_->shards->vocab.begin, best_);
  } else {
    for (int64_t row = 0; row < local.rows; ++row) best_[row] = {-std::numeric_limits<float>::infinity(), -1};
  }
  RETURN_IF_ERROR(c_->device->Synchronize());
  const ScoredToken* all = best_;
  if (world_size > 1) {
    RETURN_IF_ERROR(c_->communicator->AllGather(best_, local.rows * static_cast<int64_t>(sizeof(ScoredToken)),
                                                ranks_best_));
    all = ranks_best_;
  }
  for (int64_t row = 0; row < local.rows; ++row) {
    ScoredToken best = all[row];
    for (int rank = 1; rank < world_size;
         ++rank) {  // ranks hold ascending ids, so > keeps the smallest among equals
      const ScoredToken& other = all[rank * local.rows + row];
      if (best.id < 0 || other.value > best.value) best = other;
    }
    tokens[row] = best.id;
  }
  return absl::OkStatus();
}

}  // namespace somnus
