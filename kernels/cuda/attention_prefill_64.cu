// Prefill's kernels for head dimensions of at most 64.

#include "kernels/cuda/attention_prefill.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

template bool PrefillAttentionOf<64>(CudaDevice& device, const AttentionShape& shape,
                                     const AttentionParams& params, int64_t num_tokens,
                                     int64_t max_context_len, char* scratch);

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
