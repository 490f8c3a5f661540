// Prefill's kernels for head dimensions of 65 to 96.

#include "kernels/cuda/attention_prefill.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

template bool PrefillAttentionOf<96>(CudaDevice& device, const AttentionShape& shape,
                                     const AttentionParams& params, int64_t num_tokens,
                                     int64_t max_context_len, char* scratch);

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
