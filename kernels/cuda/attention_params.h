#pragma once
// What the attention kernels are given, and the functions that start them. Internal to attention*.cu.

#include <cstdint>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/types.h"
#include "kernels/ops.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

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
  float scale_log2 = 1;  // of scores, K's scale in it, so that weights are powers of two
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
};

// One token for each of the first num_seqs sequences. `scratch`: plan.scratch.bytes(). Returns false when
// tensor cores cannot take it on this chip.
bool DecodeAttention(CudaDevice& device, const AttentionShape& shape, const AttentionParams& params,
                     int64_t max_context_len, char* scratch);

// Any number of tokens for each sequence. `scratch`: plan.scratch.bytes(). Returns false as above.
bool PrefillAttention(CudaDevice& device, const AttentionShape& shape, const AttentionParams& params,
                      int64_t num_tokens, int64_t max_context_len, char* scratch);

// Takes any types, shapes and alignments, slowly; params.first_seq is 0. Returns false when head_dim is too
// large for shared memory.
bool PlainAttention(CudaDevice& device, const AttentionShape& shape, const AttentionParams& params,
                    int64_t num_tokens);

AttentionChip AttentionChipOf(const CudaDevice& device);

// Calls fn(TypeTag<T>{}, TypeTag<E>{}, std::integral_constant<int, dims>{}) for the tensor-core kernel of a
// shape.
template <typename T, typename E, typename Fn>
void DispatchDims(int dims, const Fn& fn) {
  switch (dims) {
    case 64:
      fn(TypeTag<T>{}, TypeTag<E>{}, std::integral_constant<int, 64>{});
      break;
    case 96:
      fn(TypeTag<T>{}, TypeTag<E>{}, std::integral_constant<int, 96>{});
      break;
    case 128:
      fn(TypeTag<T>{}, TypeTag<E>{}, std::integral_constant<int, 128>{});
      break;
    case 256:
      fn(TypeTag<T>{}, TypeTag<E>{}, std::integral_constant<int, 256>{});
      break;
    default:
      break;
  }
}
template <typename Fn>
void DispatchMma(const AttentionShape& shape, int dims, const Fn& fn) {
  const bool f8 = shape.cache == DataType::kF8E4M3;
  if (shape.act == DataType::kBF16) {
    f8 ? DispatchDims<bf16, f8e4m3>(dims, fn) : DispatchDims<bf16, bf16>(dims, fn);
  } else {
    f8 ? DispatchDims<f16, f8e4m3>(dims, fn) : DispatchDims<f16, f16>(dims, fn);
  }
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
