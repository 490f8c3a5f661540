// CudaDevice::ops in the emulator: the backend's ops. Ops that write tokens to a KV cache first tell the race
// detector of the cache's null block (base/null_block.h), to which rows that pad a batch write together on
// purpose. Races in all other blocks of the cache are found.

#include "kernels/cuda/cuda_ops.h"
#include "kernels/emulator/options.h"

namespace somnus::cuda_emulated {
namespace {

template <typename T>
void PassOverNullBlock(const Device&, const T&) {}
void PassOverNullBlock(const Device& device, const KvCacheView& cache) {
  emulator::PassOverRaces(
      cache.data, cuda_emulated::KvBlockBytes(device, cache.dtype, cache.block_size, cache.num_kv_heads,
                                              cache.head_dim, cache.latent));
}

// Announces the null block of the op's cache, and calls the op `kOp`.
template <auto kOp, typename... Args>
void Announced(Device& device, Args... args) {
  (PassOverNullBlock(device, args), ...);
  kOp(device, args...);
}

}  // namespace

const OpTable& CudaDevice::ops() const {
  static constexpr OpTable kOps = [] {
    OpTable ops = SOMNUS_OP_TABLE;
    ops.QkNormRopeAndCache = &Announced<&cuda_emulated::QkNormRopeAndCache>;
    ops.LatentRopeAndCache = &Announced<&cuda_emulated::LatentRopeAndCache>;
    return ops;
  }();
  return kOps;
}

}  // namespace somnus::cuda_emulated
