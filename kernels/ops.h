#pragma once
// Every operation of a decoder model, as free functions at fused granularity. The only kernel header that
// models include; one implementation per device (kernels/cpu, kernels/cuda), chosen by Device::kind().
//
// Conventions. T: tokens of a step. Shapes are in comments, [rows, cols], row-major. "act" is the activation
// type that feeds a Linear: bf16, f16 or f32, which is the weight type where weights are not quantized. "sum"
// is the type that a Linear of the model's blocks writes, SumType(act): f32 on the CPU, act on CUDA (half the
// traffic; tensor cores round once). The residual stream, norm weights, biases and logits are f32 everywhere.
// Every pointer is to the device's memory unless it says host. Nothing here allocates: scratch comes from
// Device::SetWorkspace. Shapes are checked by the caller; a wrong shape is a broken invariant, not an error.
// Device::Synchronize returns the errors of a device.
//
// Batch invariance (CPU, bitwise): row t of every output depends only on row t of the inputs (for attention,
// on the sequence's own cache) and never on T, on the other rows, on the number of threads, on how a prompt
// was cut into chunks, or on which blocks were used. Every output element has one fixed accumulation order.

#include <cstdint>

#include "kernels/device.h"
#include "kernels/op_types.h"
#include "kernels/tensor.h"

namespace somnus {

// ---- Types

// The type "sum" of this device.
DataType SumType(const Device& device, DataType act);

// The type of a router's weights, for logits of experts as exact as this device makes them: f32 on the CPU,
// act on CUDA, whose products add up in f32.
DataType RouterWeightType(const Device& device, DataType act);

// ---- Linear

// Returns the bytes of a packed [n, k] matrix, padding included. The matrix's memory must be aligned to 64
// bytes.
int64_t PackedWeightBytes(const Device& device, DataType dtype, int64_t n, int64_t k);

// Packs rows [row_begin, row_begin + num_rows) of `weight` from dense f32 `rows` [num_rows, k], rounding to
// the weight's dtype (to nearest even). Rows may come in any order and in pieces of any size; ranges that do
// not overlap may be packed from several threads at once when their bounds are multiples of 64. Padding rows
// need no call. `rows` is host memory and may be reused when the call returns; the weight is whole after
// Synchronize().
void PackWeightRows(const Device& device, const LinearWeight& weight, int64_t row_begin, int64_t num_rows,
                    const float* rows);

// Whether this device computes with stored weights of the quantized `type`. The weights then have that dtype,
// a k that is a multiple of QuantBlockValues, and serve Linear and Embedding; except for kF8E4M3, Linear
// rounds its activations to 8 bits, kQuantBlock at a time. A device that does not compute with `type` must be
// given such weights as another type.
bool ComputesQuantized(const Device& device, DataType type);

// As PackWeightRows, of a quantized weight that the device computes with. `rows` are as in a GGUF file:
// [num_rows, k / QuantBlockValues] blocks of QuantBlockBytes each. With kF8E4M3 no number is NaN, and either
// each row has one scale, or each 32 rows from a multiple of 32 on have the same scales.
void PackQuantizedRows(const Device& device, const LinearWeight& weight, int64_t row_begin, int64_t num_rows,
                       const uint8_t* rows);

// data[0..n) = values, which are host memory: norms, biases and tables. May be called from several threads at
// once, as PackWeightRows.
void PackVector(const Device& device, float* data, const float* values, int64_t n);

// y[T, n] = x[T, k] * w^T + bias.  x: act, on the CPU with weights of f32 too; y: sum or f32; bias: f32 [n]
// or nullptr.
void Linear(Device& device, const TensorView& x, const LinearWeight& w, const float* bias,
            const TensorView& y);

// y[t] += (x[t] * A^T) * B^T with the adapter in slot slots[t]; a row with a negative slot, or whose slot has
// rank 0, keeps its bits. x: act [T, k], of the adapters' dtype; y: sum or f32 [T, n]; slots: [T]; hidden:
// f32 [T, max_rank], scratch. LoRA (arXiv 2106.09685); the scale is in B.
void LoraAdd(Device& device, const TensorView& x, const LoraWeights& adapters, const int32_t* slots,
             const TensorView& hidden, const TensorView& y);

// Measures the ways that the device has to make y = x * w^T + bias for x.rows rows, and keeps the fastest for
// every later Linear of that shape. weights: [num_weights] of one shape, the more the better: a weight that
// stays in a cache between runs tells little. y holds no result afterwards. Waits for the device; must not be
// called while a graph is captured. Returns false when there is nothing to choose (a CPU) or the choice was
// made before.
bool TuneLinear(Device& device, const TensorView& x, const LinearWeight* weights, int64_t num_weights,
                const float* bias, const TensorView& y);

// out = 0, of any type. A rank without columns adds that to a sum.
void FillZero(Device& device, const TensorView& out);

// data[i] = a uniform random number from [-scale, scale], which depends on (seed, i) alone: the same on every
// device. data: f32, bf16 or f16, aligned to 16 bytes. Replaces weights where there is no checkpoint.
void FillRandom(Device& device, void* data, DataType dtype, int64_t count, uint64_t seed, float scale);

// ---- Embedding, norms, activations

// out[t] (f32 [T, hidden]) = table[token_ids[t] - vocab_begin], or zeros where the id is outside
// [vocab_begin, vocab_end): an all-reduce adds the other ranks' rows. table: packed like a Linear weight, so
// that tied heads share the table.
void Embedding(Device& device, const int32_t* token_ids, const LinearWeight& table, int64_t vocab_begin,
               int64_t vocab_end, const TensorView& out);

// out[t] += table[positions[t] + offset]: OPT's learned positions. table: f32 [max_positions, hidden].
void AddPositionEmbedding(Device& device, const int32_t* positions, const TensorView& table, int64_t offset,
                          const TensorView& out);

// residual += delta (unless delta.data is null); out = residual / rms(residual) * weight.
// residual: f32 [T, hidden]; delta: sum or f32; weight: f32 [hidden]; out: act. Llama's pre-norm block.
void AddRmsNorm(Device& device, const TensorView& residual, const TensorView& delta, const float* weight,
                double eps, const TensorView& out);

// The same with LayerNorm: out = (residual - mean) / sqrt(var + eps) * weight + bias. OPT.
void AddLayerNorm(Device& device, const TensorView& residual, const TensorView& delta, const float* weight,
                  const float* bias, double eps, const TensorView& out);

// x = x / rms(x) * weight, in place. x: sum or f32 [T, hidden]; weight: f32 [hidden]. The norm of a block's
// output (Gemma 2, OLMo 2, GLM-4).
void RmsNorm(Device& device, const TensorView& x, const float* weight, double eps);

// The two halves of RmsNorm over rows that ranks divide among themselves. squares[t] (f32 [T, 1]) = the sum
// of the squares of x[t] (sum [T, n]).
void SumSquares(Device& device, const TensorView& x, const TensorView& squares);
// x[t] = x[t] / sqrt(squares[t] / width + eps) * weight, in place. x: sum [T, n]; squares: f32 [T, 1], of all
// ranks' columns together, which are `width`; weight: f32 [n].
void RmsNormBySquares(Device& device, const TensorView& x, const TensorView& squares, int64_t width,
                      const float* weight, double eps);

// x = factor * x, then, unless softcap is 0, x = softcap * tanh(x / softcap), in place. x: sum or f32.
void ScaleAndCap(Device& device, const TensorView& x, float factor, float softcap);

// residual += delta.  residual: f32 [T, hidden]; delta: sum or f32.
void Add(Device& device, const TensorView& residual, const TensorView& delta);

// out = silu(gate_up[:, :n]) * gate_up[:, n:].  gate_up: sum [T, 2n]; out: act [T, n]. Llama's MLP.
void SiluAndMul(Device& device, const TensorView& gate_up, const TensorView& out);

// As SiluAndMul, with GELU in its tanh form in place of silu. Gemma's MLP.
void GeluTanhAndMul(Device& device, const TensorView& gate_up, const TensorView& out);

// As SiluAndMul, with the clamped unit in place of silu. GPT-OSS's experts.
void ClampedSwigluAndMul(Device& device, const TensorView& gate_up, const ClampedSwiglu& unit,
                         const TensorView& out);

// out = f(x).  x: sum or f32 [T, n]; out: act [T, n]. kIdentity only converts.
void Activate(Device& device, const TensorView& x, UnaryActivation f, const TensorView& out);

// Copies rows: out[i] = x[rows[i]], both of the same type. Picks the tokens that need logits.
void GatherRows(Device& device, const TensorView& x, const int32_t* rows, const TensorView& out);

// Rows [first_row, first_row + num_rows) that are added up in a row of the result.
struct PooledRows {
  int32_t first_row;
  int32_t num_rows;  // at least 1
  int32_t out_row;
  bool continues;  // the sum goes on from the value of the result's row, else from 0
  float divisor;   // of the sum, at the end; 1: none
};
// For each of pools[0, n): out[out_row] = (out[out_row] or 0, + x[first_row] + x[first_row + 1] + ...) /
// divisor, added up one row after the other, so that the sum does not depend on how the rows are divided
// among calls. x: act or f32 [T, n]; out: f32 [R, n]. No two pools of one result's row.
void PoolRows(Device& device, const TensorView& x, const PooledRows* pools, int64_t n, const TensorView& out);

// ---- Mixtures of experts

// Chooses each token's experts and sorts the pairs by expert: fills all arrays of `routing`, whose numbers
// are set. logits: f32 [T, E] of all ranks' experts, at most kMaxExperts; correction: f32 [E], which is added
// to scores for the choice alone, or nullptr. A token whose logits are not finite has some experts and
// weights that are not finite.
void RouteExperts(Device& device, const TensorView& logits, const float* correction, const RouterRule& rule,
                  const ExpertRouting& routing);

// Which row of x a row of the routing reads.
enum class ExpertInput {
  kTokens,  // its token's: x is [T, k]
  kRows     // the row of the same number: x is [P, k]
};
// y[r] (sum or f32 [P, n]) = x's row * w[e]^T + bias[e] for each row r of the routing, where e is the row's
// expert; other rows of y are left as they are. x: act.
void ExpertsLinear(Device& device, const TensorView& x, ExpertInput input, const ExpertRouting& routing,
                   const ExpertWeight& w, const ExpertBias& bias, const TensorView& y);

// out[t] (sum or f32 [T, n]) = the sum of weight * x[row] over the token's experts that this rank has, in the
// order of the token's ids, and of shared[t] (as out; may be out), times sigmoid(mix[t]) where mix (f32 [T,
// 1]) is given. x: sum or f32 [P, n]. Views without data are not given.
void CombineExperts(Device& device, const TensorView& x, const ExpertRouting& routing,
                    const TensorView& shared, const TensorView& mix, const TensorView& out);

// ---- Attention

// The bytes of a block of a KvCacheView.
int64_t KvBlockBytes(const Device& device, DataType dtype, int64_t block_size, int64_t num_kv_heads,
                     int64_t head_dim, bool latent = false);

// The sequences of a step, prefill chunks and decodes mixed. The numbers are known to the host: the numbers
// choose kernels and grids, and bound the arrays' contents. On CUDA a sequence may be padding (a graph runs a
// fixed number of sequences): context_len is 0, the sequence has one row with position 0 and slot 0, and the
// output row is zeros.
struct AttentionBatch {
  int64_t num_seqs = 0;
  int64_t num_tokens = 0;  // T
  // The first num_decodes sequences have one row each; 0 is always right.
  int64_t num_decodes = 0;
  int64_t max_query_len = 0;    // no sequence has more rows than this
  int64_t max_context_len = 0;  // no context_len is larger
  // [num_seqs + 1]: the rows of sequence i are [query_start[i], query_start[i + 1]).
  const int32_t* query_start = nullptr;
  // [num_seqs]: tokens in the cache after this step (the last query's position + 1).
  const int32_t* context_len = nullptr;
  const int32_t* block_tables = nullptr;  // [num_seqs, max_blocks_per_seq]
  int64_t max_blocks_per_seq = 0;
  const int32_t* positions = nullptr;     // [T]
  const int32_t* slot_mapping = nullptr;  // [T]: block_id * block_size + offset, where the token's K and V go
};

// Rotary embedding's table: cos and sin of position p in row p, f32 [max_positions, head_dim / 2] each,
// Hugging Face's half-rotation order. nullptr cos: no rotation. q_scale: f32 [max_positions], a factor of
// queries at each position, after the rotation; nullptr: 1.
struct RopeTable {
  const float* cos = nullptr;
  const float* sin = nullptr;
  const float* q_scale = nullptr;
};

// In place on qkv (sum [T, (num_heads + 2 * num_kv_heads) * head_dim], q then k then v): optional RMSNorm of
// each head's q and k (q_norm, k_norm: f32 [head_dim] or nullptr), rotation, then k and v into the cache at
// slot_mapping.
void QkNormRopeAndCache(Device& device, const TensorView& qkv, int64_t num_heads, const float* q_norm,
                        const float* k_norm, double eps, const RopeTable& rope, const AttentionBatch& batch,
                        const KvCacheView& cache);

// The sizes of a head of latent attention: `nope` dimensions of queries and keys without a position, `rope`
// with one (even; neighbours rotate together, 2i with 2i + 1, or, unless interleaved, i with i +
// rope / 2), and the latent vector of a token, of which keys and values are linear images.
struct LatentShape {
  int64_t nope = 0;
  int64_t rope = 0;
  int64_t latent = 0;
  bool interleaved = true;
};

// Writes the tokens' rows of a latent cache (head_dim is latent + rope, one KV head), and the part of the
// queries that has a position. row: sum [T, latent + rope], of which the first `latent` columns are
// normalized by RMSNorm in place (norm: f32 [latent]), and the rest rotated. queries: sum [T, num_heads *
// (nope + rope)]; the last `rope` of each head are rotated into the last `rope` columns of the head in `out`,
// sum [T, num_heads * (latent + rope)]. table: f32 [max_positions, rope / 2]; q_scale is not used.
void LatentRopeAndCache(Device& device, const TensorView& row, const float* norm, double eps,
                        const TensorView& queries, int64_t num_heads, const LatentShape& shape,
                        const RopeTable& table, const AttentionBatch& batch, const KvCacheView& cache,
                        const TensorView& out);

// Causal attention over the paged cache (PagedAttention, SOSP'23 section 4.1): query row t of sequence i sees
// the cache's tokens [0, positions[t]], or those of them that rule.window leaves. q: the first num_heads *
// head_dim columns of qkv; out: act [T, num_heads * head_dim]. kv_head_of_head: [num_heads], which of this
// rank's KV heads serves query head h (uneven shards have no fixed ratio). rule: window >= 0, logit_softcap
// >= 0. With a latent cache a head's output are means of whole rows, [head_dim].
void PagedAttention(Device& device, const TensorView& qkv, int64_t num_heads, const int32_t* kv_head_of_head,
                    const AttentionRule& rule, const AttentionBatch& batch, const KvCacheView& cache,
                    const TensorView& out);

// Copies whole blocks, all layers: cache data of block src[i] to dst[i]. `layers`: [num_layers] views.
void CopyBlocks(Device& device, const KvCacheView* layers, int64_t num_layers, const int32_t* src,
                const int32_t* dst, int64_t count);

// A pool of blocks in host memory (Device::AllocatePinned): [num_blocks][num_layers][KvBlockBytes], so that
// all layers of a block are contiguous. The bytes are the same as in the cache.
struct KvHostPool {
  void* data = nullptr;
  int64_t num_blocks = 0;
  int64_t first_block = 0;  // the number of the first block in a larger pool that this view is a part of
};
struct BlockSwap {
  int32_t device_block;
  int32_t host_block;
};
enum class SwapDirection { kToHost, kToDevice };
// Copies whole blocks, all layers, between the cache and a pool in the host's memory, after all ops and swaps
// that were queued before. To the device: before all ops that are queued later. To the host: may run beside
// ops that are queued later, so ops that overwrite the blocks must be queued behind Device::AwaitSwaps.
// `layers`: [num_layers] views; `swaps`: host memory, which may be reused when the call returns. A block that
// does not exist is a broken invariant; no destination may come twice.
void SwapBlocks(Device& device, const KvCacheView* layers, int64_t num_layers, const KvHostPool& pool,
                SwapDirection direction, const BlockSwap* swaps, int64_t count);

// ---- A step's inputs that the host does not know when queueing the step, or need not send twice

// An entry of a slot's block table: tables[slot][index] = block_id.
struct BlockTableEdit {
  int32_t slot;
  int32_t index;
  int32_t block_id;
};
// tables: [num_slots, max_blocks_per_seq]. No two edits of one entry.
void EditBlockTables(Device& device, const BlockTableEdit* edits, int64_t n, int32_t* tables,
                     int64_t max_blocks_per_seq);

// out[i] = tables[slots[i]], as many entries as context_len[i] tokens fill. Rows with context_len 0 are not
// written.
void GatherBlockTables(Device& device, const int32_t* tables, const int32_t* slots,
                       const int32_t* context_len, int64_t n, int64_t max_blocks_per_seq, int64_t block_size,
                       int32_t* out);

// A negative id names a token that is still on the device: -1 - i means values[i]. Such ids among ids[0..n)
// are replaced by the value, or by 0 where the value is no token (negative).
void ResolveTokens(Device& device, int32_t* ids, int64_t n, const int32_t* values);

// values[slots[i]] = tokens[i]; a negative slot is skipped. No slot twice.
void ScatterTokens(Device& device, const int32_t* slots, const int32_t* tokens, int64_t n, int32_t* values);

// ---- Logits and sampling

// Written for a row without a token. A row's logits are good when no logit is NaN and the largest is finite.
inline constexpr int32_t kLogitsNotFinite = -1;
inline constexpr int32_t kNoTokenAllowed = -2;  // every logit is -inf; written by Sample alone

// out[r][c] = x[r][c], f32. Puts a rank's columns into the whole matrix.
void CopyMatrix(Device& device, const TensorView& x, const TensorView& out);

// tokens[r] = the id of the best of all[rank][r], which ArgMax wrote, the smallest id among equals; ranks
// hold ascending ids. kLogitsNotFinite when a rank's value is NaN, or the best is not finite.
void CombineArgMax(Device& device, const ScoredToken* all, int64_t num_ranks, int64_t num_rows,
                   int32_t* tokens);

// best[r] = the largest value of row r (the smallest id among equals), ids starting at id_offset; {NaN, -1}
// when a value is NaN, {-inf, -1} when none is above -inf or n is 0. logits: f32 [R, n].
void ArgMax(Device& device, const TensorView& logits, int64_t id_offset, ScoredToken* best);

// out_logprob[r] = log_softmax(logits[r]) at ids[r], which must be in [0, vocab); out_rank[r] = 1 + the
// number of logits that are strictly larger; out_top[r] = the `k` likeliest tokens (k <= 64; ties by id), in
// order. out_top: [R, k] or nullptr when k is 0. logits: f32 [R, vocab]. Where a row's logits are not good,
// out_logprob[r] is NaN, and rank and ids have some valid values.
void LogProbs(Device& device, const TensorView& logits, const int32_t* ids, int64_t k, float* out_logprob,
              int32_t* out_rank, ScoredToken* out_top);

// The ops that change logits before temperature, in vLLM's order: allowed ids, then edits (bad words,
// min_tokens, logit bias), then penalties.

// Sets the logits of row rows[i] to -inf, except at ids with their bit set in masks[i]. masks: [n, (vocab +
// 31) / 32] words.
void KeepAllowed(Device& device, const TensorView& logits, const int32_t* rows, const uint32_t* masks,
                 int64_t n);

// logits[row][id] += addend; -inf forbids the token, whatever the logit. At most one edit of a (row, id).
struct LogitEdit {
  int32_t row;
  int32_t id;
  float addend;
};
void EditLogits(Device& device, const TensorView& logits, const LogitEdit* edits, int64_t n);

// How often tokens occurred, per slot. Kept on the device, since a step may be launched before the host knows
// the tokens of the previous step.
struct TokenCounts {
  int32_t* outputs = nullptr;     // [num_slots, vocab]: times generated
  uint32_t* in_prompt = nullptr;  // [num_slots, (vocab + 31) / 32]: a bit per id
  int64_t vocab = 0;
};
// Sets all counts of slots[0..n) to 0; a negative slot is skipped.
void ClearTokenCounts(Device& device, const TokenCounts& counts, const int32_t* slots, int64_t n);
// Marks ids[0..n) as prompt tokens of `slot`; ids may repeat.
void MarkPromptTokens(Device& device, const TokenCounts& counts, int32_t slot, const int32_t* ids, int64_t n);
// outputs[slots[i]][ids[i]] += 1; a negative slot or id is skipped.
void CountTokens(Device& device, const TokenCounts& counts, const int32_t* slots, const int32_t* ids,
                 int64_t n);

struct PenaltyRow {
  int32_t slot;  // -1: none
  float repetition;
  float frequency;
  float presence;
};
// Changes row r as rows[r] says: the logit of a token of prompt or output is divided (if positive) or
// multiplied (if negative) by `repetition`; then frequency * times generated is subtracted, and `presence` if
// the token was generated.
void ApplyPenalties(Device& device, const TensorView& logits, const PenaltyRow* rows,
                    const TokenCounts& counts);

// One row of sampling: temperature, top-k, top-p, min-p in vLLM's order, then Gumbel-max with counter-based
// random numbers keyed by (seed, position, token id): the result does not depend on the batch, nor on the
// process.
struct SampleRow {
  float temperature;  // 0: greedy
  float top_p;        // 1: off
  int32_t top_k;      // 0: off
  float min_p;        // 0: off
  uint64_t seed;
  int32_t position;  // of the token being sampled
};
// tokens[r] = the sample of row r, or kLogitsNotFinite (also when the division by the temperature gives
// +inf), or kNoTokenAllowed. logits: f32 [R, vocab], used as scratch (penalties were applied by the caller).
void Sample(Device& device, const TensorView& logits, const SampleRow* rows, int32_t* tokens);

// ---- Workspace

// The largest sizes that ops will be called with.
struct OpsLimits {
  int64_t max_tokens = 0;  // T
  int64_t max_seqs = 0;    // rows of logits
  int64_t max_k = 0;       // largest in_features of a Linear
  int64_t max_n = 0;       // largest out_features
  int64_t num_heads = 0;   // this rank's
  int64_t head_dim = 0;
  int64_t block_size = 0;
  int64_t max_model_len = 0;
  int64_t vocab_size = 0;
  int64_t max_expert_rows = 0;  // of an ExpertRouting
  int64_t max_experts = 0;      // this rank's
};
int64_t OpsWorkspaceBytes(const Device& device, const OpsLimits& limits);

}  // namespace somnus
