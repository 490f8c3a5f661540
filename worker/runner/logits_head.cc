#include "worker/runner/logits_head.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"

namespace somnus {

int64_t LogitsHead::MaxRows(const Device& device, int64_t vocab_size, int64_t max_num_seqs) {
  const int64_t bytes = device.asynchronous() ? 512 << 20 : 64 << 20;
  const int64_t affordable = std::max<int64_t>(16, bytes / (vocab_size * 4));
  return std::min(affordable, std::max<int64_t>(64, max_num_seqs));
}

void LogitsHead::Carve(Carver* carver, const ModelConfig& config, const ModelShards& shards, DataType act,
                       int64_t max_rows) {
  max_rows_ = max_rows;
  gathered_hidden_ = carver->TakeMatrix(act, max_rows, config.embedding_dim);
  local_ = carver->TakeMatrix(DataType::kF32, max_rows, shards.max_vocab_rows);
  best_ = carver->Take<ScoredToken>(max_rows);
  if (shards.world_size == 1) return;
  ranks_logits_ = carver->Take<float>(shards.world_size * max_rows * shards.max_vocab_rows);
  whole_ = carver->TakeMatrix(DataType::kF32, max_rows, config.vocab_size);
  ranks_best_ = carver->Take<ScoredToken>(shards.world_size * max_rows);
}

TensorView LogitsHead::LocalLogits(const TensorView& hidden, const LogitRows& rows) {
  SOMNUS_CHECK(rows.count > 0 && rows.count <= max_rows_);
  TensorView x = FirstRows(hidden, rows.count);
  if (!rows.all) {
    x = FirstRows(gathered_hidden_, rows.count);
    GatherRows(*c_->device, hidden, rows.indices, x);
  }
  TensorView logits = FirstRows(local_, rows.count);
  logits.cols = c_->shards->vocab.size();
  if (logits.cols == 0) return logits;
  Linear(*c_->device, x, c_->weights->head, nullptr, logits);
  const auto scale = static_cast<float>(c_->config->logits_scale);
  const auto softcap = static_cast<float>(c_->config->logits_softcap);
  if (scale != 1.0f || softcap != 0.0f) ScaleAndCap(*c_->device, logits, scale, softcap);
  return logits;
}

int64_t LogitsHead::Tune(int64_t num_rows) {
  if (c_->shards->vocab.empty() || num_rows > max_rows_) return 0;
  TensorView logits = FirstRows(local_, num_rows);
  logits.cols = c_->shards->vocab.size();
  return TuneLinear(*c_->device, FirstRows(gathered_hidden_, num_rows), &c_->weights->head, 1, nullptr,
                    logits);
}

absl::Status LogitsHead::AllGather(const void* in, int64_t bytes, void* out) {
  if (!c_->communicator->stream_ordered()) RETURN_IF_ERROR(c_->device->Synchronize());
  return c_->communicator->AllGather(in, bytes, out);
}

absl::StatusOr<TensorView> LogitsHead::Logits(const TensorView& hidden, const LogitRows& rows) {
  const TensorView local = LocalLogits(hidden, rows);
  const int world_size = c_->communicator->world_size();
  if (world_size == 1) return local;
  RETURN_IF_ERROR(AllGather(local.data, local.rows * local.stride * 4, ranks_logits_));
  const TensorView whole = FirstRows(whole_, local.rows);
  for (int rank = 0; rank < world_size; ++rank) {
    const Range vocab = ShardRange(c_->config->vocab_size, rank, world_size);
    TensorView from = local, to = whole;
    from.data = ranks_logits_ + rank * local.rows * local.stride;
    to.data = whole.row<float>(0) + vocab.begin;
    from.cols = to.cols = vocab.size();
    if (to.cols > 0) CopyMatrix(*c_->device, from, to);
  }
  return whole;
}

absl::Status LogitsHead::ArgMaxTokens(const TensorView& hidden, const LogitRows& rows, int32_t* tokens) {
  const TensorView local = LocalLogits(hidden, rows);
  const int world_size = c_->communicator->world_size();
  ArgMax(*c_->device, local, c_->shards->vocab.begin, best_);
  const ScoredToken* all = best_;
  if (world_size > 1) {
    RETURN_IF_ERROR(AllGather(best_, local.rows * static_cast<int64_t>(sizeof(ScoredToken)), ranks_best_));
    all = ranks_best_;
  }
  CombineArgMax(*c_->device, all, world_size, local.rows, tokens);
  return absl::OkStatus();
}

absl::Status LogitsHead::ShareTokens(int32_t* tokens, int64_t count, SideStage* side) {
  SOMNUS_CHECK(count > 0 && count <= max_rows_);
  if (c_->communicator->world_size() == 1) return absl::OkStatus();
  static_assert(sizeof(ScoredToken) >= sizeof(int32_t));
  auto* const ranks_tokens = reinterpret_cast<int32_t*>(ranks_best_);
  RETURN_IF_ERROR(AllGather(tokens, count * static_cast<int64_t>(sizeof(int32_t)), ranks_tokens));
  std::vector<int32_t> places(count);
  std::iota(places.begin(), places.end(), 0);
  ASSIGN_OR_RETURN(const int32_t* staged, side->Stage(places.data(), count));
  ScatterTokens(*c_->device, staged, ranks_tokens, count, tokens);  // rank 0's come first
  return absl::OkStatus();
}

}  // namespace somnus
