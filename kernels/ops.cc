// Forwards each op to the `device` argument.
#include "kernels/ops.h"

#include "base/check.h"
#include "kernels/op_table.h"

namespace somnus {

DataType SumType(const Device& device, DataType act) { return device.ops().SumType(device, act); }

DataType RouterWeightType(const Device& device, DataType act) {
  return device.ops().RouterWeightType(device, act);
}

int64_t PackedWeightBytes(const Device& device, DataType dtype, int64_t n, int64_t k) {
  return device.ops().PackedWeightBytes(device, dtype, n, k);
}

void PackWeightRows(const Device& device, const LinearWeight& weight, int64_t row_begin, int64_t num_rows,
                    const float* rows) {
  device.ops().PackWeightRows(device, weight, row_begin, num_rows, rows);
}

bool ComputesQuantized(const Device& device, DataType type) {
  return device.ops().ComputesQuantized(device, type);
}

void PackQuantizedRows(const Device& device, const LinearWeight& weight, int64_t row_begin, int64_t num_rows,
                       const uint8_t* rows) {
  device.ops().PackQuantizedRows(device, weight, row_begin, num_rows, rows);
}

void PackVector(const Device& device, float* data, const float* values, int64_t n) {
  device.ops().PackVector(device, data, values, n);
}

void Linear(Device& device, const TensorView& x, const LinearWeight& w, const float* bias,
            const TensorView& y) {
  device.ops().Linear(device, x, w, bias, y);
}

void LoraAdd(Device& device, const TensorView& x, const LoraWeights& adapters, const int32_t* slots,
             const TensorView& hidden, const TensorView& y) {
  device.ops().LoraAdd(device, x, adapters, slots, hidden, y);
}

bool TuneLinear(Device& device, const TensorView& x, const LinearWeight* weights, int64_t num_weights,
                const float* bias, const TensorView& y) {
  return device.ops().TuneLinear(device, x, weights, num_weights, bias, y);
}

void Embedding(Device& device, const int32_t* token_ids, const LinearWeight& table, int64_t vocab_begin,
               int64_t vocab_end, const TensorView& out) {
  device.ops().Embedding(device, token_ids, table, vocab_begin, vocab_end, out);
}

void AddPositionEmbedding(Device& device, const int32_t* positions, const TensorView& table, int64_t offset,
                          const TensorView& out) {
  device.ops().AddPositionEmbedding(device, positions, table, offset, out);
}

void AddRmsNorm(Device& device, const TensorView& residual, const TensorView& delta, const float* weight,
                double eps, const TensorView& out) {
  device.ops().AddRmsNorm(device, residual, delta, weight, eps, out);
}

void AddLayerNorm(Device& device, const TensorView& residual, const TensorView& delta, const float* weight,
                  const float* bias, double eps, const TensorView& out) {
  device.ops().AddLayerNorm(device, residual, delta, weight, bias, eps, out);
}

void RmsNorm(Device& device, const TensorView& x, const float* weight, double eps) {
  device.ops().RmsNorm(device, x, weight, eps);
}

void SumSquares(Device& device, const TensorView& x, const TensorView& squares) {
  device.ops().SumSquares(device, x, squares);
}

void RmsNormBySquares(Device& device, const TensorView& x, const TensorView& squares, int64_t width,
                      const float* weight, double eps) {
  device.ops().RmsNormBySquares(device, x, squares, width, weight, eps);
}

void ScaleAndCap(Device& device, const TensorView& x, float factor, float softcap) {
  device.ops().ScaleAndCap(device, x, factor, softcap);
}

void Add(Device& device, const TensorView& residual, const TensorView& delta) {
  device.ops().Add(device, residual, delta);
}

void SiluAndMul(Device& device, const TensorView& gate_up, const TensorView& out) {
  device.ops().SiluAndMul(device, gate_up, out);
}

void GeluTanhAndMul(Device& device, const TensorView& gate_up, const TensorView& out) {
  device.ops().GeluTanhAndMul(device, gate_up, out);
}

void ClampedSwigluAndMul(Device& device, const TensorView& gate_up, const ClampedSwiglu& unit,
                         const TensorView& out) {
  device.ops().ClampedSwigluAndMul(device, gate_up, unit, out);
}

void Activate(Device& device, const TensorView& x, UnaryActivation f, const TensorView& out) {
  device.ops().Activate(device, x, f, out);
}

void GatherRows(Device& device, const TensorView& x, const int32_t* rows, const TensorView& out) {
  device.ops().GatherRows(device, x, rows, out);
}

void PoolRows(Device& device, const TensorView& x, const PooledRows* pools, int64_t n,
              const TensorView& out) {
  device.ops().PoolRows(device, x, pools, n, out);
}

void RouteExperts(Device& device, const TensorView& logits, const float* correction, const RouterRule& rule,
                  const ExpertRouting& routing) {
  SOMNUS_CHECK(logits.cols <= kMaxExperts && rule.per_token <= kMaxExpertsPerToken);
  SOMNUS_CHECK(rule.per_token == routing.per_token && logits.rows == routing.num_tokens);
  device.ops().RouteExperts(device, logits, correction, rule, routing);
}

void ExpertsLinear(Device& device, const TensorView& x, ExpertInput input, const ExpertRouting& routing,
                   const ExpertWeight& w, const ExpertBias& bias, const TensorView& y) {
  device.ops().ExpertsLinear(device, x, input, routing, w, bias, y);
}

void CombineExperts(Device& device, const TensorView& x, const ExpertRouting& routing,
                    const TensorView& shared, const TensorView& mix, const TensorView& out) {
  device.ops().CombineExperts(device, x, routing, shared, mix, out);
}

int64_t KvBlockBytes(const Device& device, DataType dtype, int64_t block_size, int64_t num_kv_heads,
                     int64_t head_dim, bool latent) {
  return device.ops().KvBlockBytes(device, dtype, block_size, num_kv_heads, head_dim, latent);
}

void QkNormRopeAndCache(Device& device, const TensorView& qkv, int64_t num_heads, const float* q_norm,
                        const float* k_norm, double eps, const RopeTable& rope, const AttentionBatch& batch,
                        const KvCacheView& cache) {
  device.ops().QkNormRopeAndCache(device, qkv, num_heads, q_norm, k_norm, eps, rope, batch, cache);
}

void LatentRopeAndCache(Device& device, const TensorView& row, const float* norm, double eps,
                        const TensorView& queries, int64_t num_heads, const LatentShape& shape,
                        const RopeTable& table, const AttentionBatch& batch, const KvCacheView& cache,
                        const TensorView& out) {
  SOMNUS_CHECK(cache.latent && cache.num_kv_heads == 1 && cache.head_dim == shape.latent + shape.rope);
  device.ops().LatentRopeAndCache(device, row, norm, eps, queries, num_heads, shape, table, batch, cache,
                                  out);
}

void PagedAttention(Device& device, const TensorView& qkv, int64_t num_heads, const int32_t* kv_head_of_head,
                    const AttentionRule& rule, const AttentionBatch& batch, const KvCacheView& cache,
                    const TensorView& out) {
  SOMNUS_CHECK(rule.window >= 0 && rule.logit_softcap >= 0);
  device.ops().PagedAttention(device, qkv, num_heads, kv_head_of_head, rule, batch, cache, out);
}

void CopyBlocks(Device& device, const KvCacheView* layers, int64_t num_layers, const int32_t* src,
                const int32_t* dst, int64_t count) {
  device.ops().CopyBlocks(device, layers, num_layers, src, dst, count);
}

void SwapBlocks(Device& device, const KvCacheView* layers, int64_t num_layers, const KvHostPool& pool,
                SwapDirection direction, const BlockSwap* swaps, int64_t count) {
  if (num_layers == 0) return;
  for (int64_t i = 0; i < count; ++i) {
    SOMNUS_CHECK(swaps[i].device_block >= 0 && swaps[i].device_block < layers[0].num_blocks);
    SOMNUS_CHECK(swaps[i].host_block >= 0 && swaps[i].host_block < pool.num_blocks);
  }
  device.ops().SwapBlocks(device, layers, num_layers, pool, direction, swaps, count);
}

void ArgMax(Device& device, const TensorView& logits, int64_t id_offset, ScoredToken* best) {
  device.ops().ArgMax(device, logits, id_offset, best);
}

void LogProbs(Device& device, const TensorView& logits, const int32_t* ids, int64_t k, float* out_logprob,
              int32_t* out_rank, ScoredToken* out_top) {
  device.ops().LogProbs(device, logits, ids, k, out_logprob, out_rank, out_top);
}

void KeepAllowed(Device& device, const TensorView& logits, const int32_t* rows, const uint32_t* masks,
                 int64_t n) {
  device.ops().KeepAllowed(device, logits, rows, masks, n);
}

void EditLogits(Device& device, const TensorView& logits, const LogitEdit* edits, int64_t n) {
  device.ops().EditLogits(device, logits, edits, n);
}

void ClearTokenCounts(Device& device, const TokenCounts& counts, const int32_t* slots, int64_t n) {
  device.ops().ClearTokenCounts(device, counts, slots, n);
}

void MarkPromptTokens(Device& device, const TokenCounts& counts, int32_t slot, const int32_t* ids,
                      int64_t n) {
  device.ops().MarkPromptTokens(device, counts, slot, ids, n);
}

void CountTokens(Device& device, const TokenCounts& counts, const int32_t* slots, const int32_t* ids,
                 int64_t n) {
  device.ops().CountTokens(device, counts, slots, ids, n);
}

void ApplyPenalties(Device& device, const TensorView& logits, const PenaltyRow* rows,
                    const TokenCounts& counts) {
  device.ops().ApplyPenalties(device, logits, rows, counts);
}

void Sample(Device& device, const TensorView& logits, const SampleRow* rows, int32_t* tokens) {
  device.ops().Sample(device, logits, rows, tokens);
}

int64_t OpsWorkspaceBytes(const Device& device, const OpsLimits& limits) {
  return device.ops().OpsWorkspaceBytes(device, limits);
}

void FillZero(Device& device, const TensorView& out) { device.ops().FillZero(device, out); }

void FillRandom(Device& device, void* data, DataType dtype, int64_t count, uint64_t seed, float scale) {
  device.ops().FillRandom(device, data, dtype, count, seed, scale);
}

void EditBlockTables(Device& device, const BlockTableEdit* edits, int64_t n, int32_t* tables,
                     int64_t max_blocks_per_seq) {
  device.ops().EditBlockTables(device, edits, n, tables, max_blocks_per_seq);
}

void GatherBlockTables(Device& device, const int32_t* tables, const int32_t* slots,
                       const int32_t* context_len, int64_t n, int64_t max_blocks_per_seq, int64_t block_size,
                       int32_t* out) {
  device.ops().GatherBlockTables(device, tables, slots, context_len, n, max_blocks_per_seq, block_size, out);
}

void ResolveTokens(Device& device, int32_t* ids, int64_t n, const int32_t* values) {
  device.ops().ResolveTokens(device, ids, n, values);
}

void ScatterTokens(Device& device, const int32_t* slots, const int32_t* tokens, int64_t n, int32_t* values) {
  device.ops().ScatterTokens(device, slots, tokens, n, values);
}

void CopyMatrix(Device& device, const TensorView& x, const TensorView& out) {
  device.ops().CopyMatrix(device, x, out);
}

void CombineArgMax(Device& device, const ScoredToken* all, int64_t num_ranks, int64_t num_rows,
                   int32_t* tokens) {
  device.ops().CombineArgMax(device, all, num_ranks, num_rows, tokens);
}

}  // namespace somnus
