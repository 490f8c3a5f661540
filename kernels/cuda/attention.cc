// PagedAttention on CUDA: chooses kernels. Tensor cores take decodes and chunks, each in one launch; the
// plain kernel takes the rest.

#include "kernels/cuda/attention_params.h"
#include "kernels/cuda/cache_layout.h"
#include "kernels/cuda/cuda_ops.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr double kLog2E = 1.4426950408889634;

bool IsAligned(const TensorView& view) {
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.stride * SizeOf(view.dtype) % 16 == 0;
}

// Returns false when tensor cores cannot take the shape.
bool TensorCoreAttention(CudaDevice& device, const AttentionShape& shape, const AttentionBatch& batch,
                         AttentionParams params) {
  const int64_t scratch_bytes =
      AttentionScratchBytes(AttentionChipOf(device), shape.num_heads, shape.head_dim, batch.max_context_len);
  if (device.workspace_bytes() < scratch_bytes) {
    device.Record(absl::InternalError("PagedAttention: the workspace is too small"));
    return true;
  }
  // Prefill's sums depend on the row alone, so in batch-invariant mode prefill's kernel computes decodes,
  // too.
  const int64_t decodes = device.batch_invariant() ? 0 : batch.num_decodes;
  if (decodes > 0) {
    params.num_seqs = static_cast<int>(decodes);
    if (!DecodeAttention(device, shape, params, batch.max_context_len, device.workspace())) return false;
  }
  if (batch.num_seqs == decodes) return true;
  params.first_seq = static_cast<int>(decodes);
  params.num_seqs = static_cast<int>(batch.num_seqs - decodes);
  return PrefillAttention(device, shape, params, batch.num_tokens - decodes, batch.max_context_len,
                          device.workspace());
}

}  // namespace

bool PrefillAttention(CudaDevice& device, const AttentionShape& shape, const AttentionParams& params,
                      int64_t num_tokens, int64_t max_context_len, char* scratch) {
  bool taken = false;
  DispatchDims(CompiledHeadDim(shape.head_dim), [&](auto dims) {
    taken = PrefillAttentionOf<decltype(dims)::value>(device, shape, params, num_tokens, max_context_len,
                                                      scratch);
  });
  return taken;
}

AttentionChip AttentionChipOf(const CudaDevice& device) {
  const ChipLimits& chip = device.chip();
  return {.num_sms = chip.num_sms,
          .max_shared_bytes = chip.max_shared_bytes,
          .shared_bytes_per_sm = chip.shared_bytes_per_sm};
}

int64_t AttentionWorkspaceBytes(const CudaDevice& device, const OpsLimits& limits) {
  return AttentionScratchBytes(AttentionChipOf(device), limits.num_heads, limits.head_dim,
                               limits.max_model_len);
}

void PagedAttention(Device& device, const TensorView& qkv, int64_t num_heads, const int32_t* kv_head_of_head,
                    const AttentionRule& rule, const AttentionBatch& batch, const KvCacheView& cache,
                    const TensorView& out) {
  if (batch.num_tokens == 0 || num_heads == 0) return;
  CudaDevice& cuda = AsCuda(device);
  const AttentionShape shape{.act = out.dtype,
                             .cache = cache.dtype,
                             .num_heads = num_heads,
                             .num_kv_heads = cache.num_kv_heads,
                             .head_dim = cache.head_dim,
                             .block_size = cache.block_size};
  const bool f8 = cache.dtype == DataType::kF8E4M3;
  AttentionParams params;
  params.q = qkv.data;
  params.q_stride = qkv.stride;
  params.out = out.data;
  params.out_stride = out.stride;
  params.kv_head_of_head = kv_head_of_head;
  params.num_heads = static_cast<int>(num_heads);
  params.num_kv_heads = static_cast<int>(cache.num_kv_heads);
  params.head_dim = static_cast<int>(cache.head_dim);
  params.block_size = static_cast<int>(cache.block_size);
  const int64_t run = CacheRunBytes(cache.dtype, cache.block_size, cache.head_dim) / SizeOf(cache.dtype);
  params.run_size = cache.latent ? 0 : run;
  params.head_size = cache.latent ? run : 2 * run;
  params.run_header = CacheRunHeader(cache.dtype, cache.block_size) / SizeOf(cache.dtype);
  params.scale_log2 =
      static_cast<float>(static_cast<double>(rule.scale) * kLog2E * (f8 ? cache.k_scale : 1.0f));
  params.v_scale = f8 ? cache.v_scale : 1.0f;
  params.cache = cache.data;
  params.block_tables = batch.block_tables;
  params.max_blocks_per_seq = batch.max_blocks_per_seq;
  params.query_start = batch.query_start;
  params.context_len = batch.context_len;
  params.positions = batch.positions;
  params.num_seqs = static_cast<int>(batch.num_seqs);
  if (rule.window > 0) params.window = rule.window;
  params.softcap_log2 = static_cast<float>(static_cast<double>(rule.logit_softcap) * kLog2E);
  params.sinks = rule.sinks;
  const bool aligned = IsAligned(qkv) && IsAligned(out) && reinterpret_cast<uintptr_t>(cache.data) % 16 == 0;
  // The tensor-core kernels look for the largest score before scaling, which needs a positive scale.
  const bool fast = TakesTensorCores(shape) && aligned && params.scale_log2 > 0 && !cache.latent;
  if (fast && TensorCoreAttention(cuda, shape, batch, params)) return;
  if (PlainAttention(cuda, shape, params, batch.num_tokens)) return;
  cuda.Record(absl::UnimplementedError("PagedAttention: no kernel takes this type or head_dim"));
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
