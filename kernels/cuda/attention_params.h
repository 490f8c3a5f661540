#pragma once
// The arguments of the attention kernels, and the functions that start the kernels. Internal to attention*.

#include <cstdint>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda_types.h"
#include "kernels/ops.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

// A window that no context fills.
inline constexpr int kNoWindow = 0x7fffffff;

// All pointers are to the device's memory; shapes as in ops.h.
struct AttentionParams {
  const void* q = nullptr;  // T
  int64_t q_stride = 0;
  void* out = nullptr;  // T
  int64_t out_stride = 0;
  const int32_t* kv_head_of_head = nullptr;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int block_size = 0;
  int64_t run_size = 0;    // elements from a head's K in a block to the head's V; 0: K is V (latent)
  int64_t head_size = 0;   // elements from a head's K in a block to the next head's K
  int64_t run_header = 0;  // elements before the elements of a run: an int8 cache's scales (cache_layout.h)
  float scale_log2 = 1;    // of scores, an f8e4m3 cache's scale of K included, so that weights are powers of
                           // two
  float v_scale = 1;
  const void* cache = nullptr;  // E
  const int32_t* block_tables = nullptr;
  int64_t max_blocks_per_seq = 0;
  const int32_t* query_start = nullptr;
  const int32_t* context_len = nullptr;
  const int32_t* positions = nullptr;
  int first_seq = 0;  // this kernel's sequences are [first_seq, first_seq + num_seqs)
  int num_seqs = 0;
  int stages = 0;  // of shared memory
  // As in AttentionRule; kernels without a rule (kRule false) do not read them.
  int window = kNoWindow;
  float softcap_log2 = 0;  // in powers of two, as scores are
  // As in AttentionRule. All kernels read the sinks, where a row's sums are whole.
  const float* sinks = nullptr;

  bool has_rule() const { return window != kNoWindow || softcap_log2 != 0; }
};

// Where a token's K of KV head `kv_head` begins in cache block `block`, in elements; the token's V is
// run_size further.
SOMNUS_HD int64_t KeyOffset(const AttentionParams& p, int block, int kv_head, int in_block) {
  const int64_t head = int64_t{block} * p.num_kv_heads + kv_head;
  return head * p.head_size + p.run_header + int64_t{in_block} * p.head_dim;
}
// Where the scale of that K is in an int8 cache, in bytes; V's is run_size further.
SOMNUS_HD int64_t KeyScaleOffset(const AttentionParams& p, int block, int kv_head, int in_block) {
  const int64_t head = int64_t{block} * p.num_kv_heads + kv_head;
  return head * p.head_size + int64_t{in_block} * 4;
}

// The first token that a row sees which sees the tokens below `limit`.
SOMNUS_HD int FirstToken(const AttentionParams& p, int limit) {
  return limit > p.window ? limit - p.window : 0;
}

// One token for each of the first num_seqs sequences. `scratch`: plan.scratch.bytes(). Returns false when
// tensor cores cannot take the shape on this chip.
bool DecodeAttention(CudaDevice& device, const AttentionShape& shape, const AttentionParams& params,
                     int64_t max_context_len, char* scratch);

// Any number of tokens for each sequence. `scratch`: plan.scratch.bytes(). Returns false as above.
bool PrefillAttention(CudaDevice& device, const AttentionShape& shape, const AttentionParams& params,
                      int64_t num_tokens, int64_t max_context_len, char* scratch);
// The same for a compiled head dimension (attention_prefill_64.cu and so on).
template <int kDims>
bool PrefillAttentionOf(CudaDevice& device, const AttentionShape& shape, const AttentionParams& params,
                        int64_t num_tokens, int64_t max_context_len, char* scratch);

// Takes any types, shapes and alignments, slowly; params.first_seq is 0. Returns false when head_dim is too
// large for shared memory.
bool PlainAttention(CudaDevice& device, const AttentionShape& shape, const AttentionParams& params,
                    int64_t num_tokens);

AttentionChip AttentionChipOf(const CudaDevice& device);

// Calls fn(TypeTag<T>{}, TypeTag<E>{}) for the types of queries and of the cache.
template <typename Fn>
void DispatchTypes(const AttentionShape& shape, const Fn& fn) {
  const auto dispatch = [&](auto act) {
    if (shape.cache == DataType::kF8E4M3) {
      fn(act, TypeTag<f8e4m3>{});
    } else if (shape.cache == DataType::kI8) {
      fn(act, TypeTag<i8>{});
    } else {
      fn(act, act);
    }
  };
  shape.act == DataType::kBF16 ? dispatch(TypeTag<bf16>{}) : dispatch(TypeTag<f16>{});
}
// Calls fn(std::bool_constant<kRule>{}): a window and a soft cap have kernels of their own, so that they cost
// nothing where a layer has neither.
template <typename Fn>
void DispatchRule(const AttentionParams& params, const Fn& fn) {
  params.has_rule() ? fn(std::true_type{}) : fn(std::false_type{});
}
// Calls fn(std::integral_constant<int, dims>{}) for a compiled head dimension.
template <typename Fn>
void DispatchDims(int dims, const Fn& fn) {
  switch (dims) {
    case 64:
      fn(std::integral_constant<int, 64>{});
      break;
    case 96:
      fn(std::integral_constant<int, 96>{});
      break;
    case 128:
      fn(std::integral_constant<int, 128>{});
      break;
    case 256:
      fn(std::integral_constant<int, 256>{});
      break;
    default:
      break;
  }
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
