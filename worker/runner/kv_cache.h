#pragma once
// A model's KV cache on a rank: a region of memory with a row for each layer of the rank's stage, in which
// the blocks of that layer follow each other, and the views that ops take.
//
// Owns the region. Borrowed, and must outlive the cache: config, shards, device, allocator. The device must
// be done with the region when the cache is freed, resized or destroyed. Used by the runner thread alone.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "allocator/sleepable_allocator.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "worker/model/kv_scales.h"
#include "worker/model/shards.h"
#include "worker/runner/block_copies.h"
#include "worker/runner/model_runner.h"
#include "worker/runner/staging.h"

namespace somnus {

class KvCache {
 public:
  // min_block_bytes: the least that a block counts for, also on a rank that has no KV heads. 0: such a rank
  // takes no memory.
  KvCache(const ModelConfig* config, const ModelShards* shards, const ModelRunnerOptions& options,
          Device* device, SleepableAllocator* allocator, int64_t min_block_bytes);
  ~KvCache();
  KvCache(const KvCache&) = delete;

  // Bytes of a block over all layers: K and V of this rank's heads.
  int64_t block_bytes() const { return block_bytes_; }
  bool allocated() const { return !layers_.empty(); }
  // A view for each layer; none before Allocate and after Free.
  const std::vector<KvCacheView>& layers() const { return layers_; }
  // Including blocks without memory; 0 before Allocate and after Free.
  int32_t num_blocks() const;

  // Takes addresses for num_blocks blocks, and memory for the first num_mapped_blocks, in place of an earlier
  // region. scales: by layer of the model; empty: all 1. After an error there is no cache.
  absl::Status Allocate(int32_t num_blocks, int32_t num_mapped_blocks, const std::vector<KvScales>& scales);
  // Gives memory to the first num_mapped_blocks, and takes memory from all later blocks. An error has changed
  // nothing.
  absl::Status Resize(int32_t num_mapped_blocks);
  absl::Status Free();

  // Queues the copies, call by call. `calls` must live as long as data staged on `side`.
  absl::Status Copy(absl::Span<const BlockCopyCall> calls, SideStage* side) const;
  // Queues copies between the cache and a host pool of this model's blocks. All blocks must exist.
  void Swap(SwapDirection direction, const KvHostPool& pool, absl::Span<const BlockSwap> swaps) const;

 private:
  int64_t RowBytes(int64_t num_blocks) const { return num_blocks * bytes_in_row_; }

  const ModelConfig& config_;
  const ModelShards& shards_;
  const DataType dtype_;
  const int32_t block_size_;
  Device& device_;
  SleepableAllocator& allocator_;
  const int64_t layer_block_bytes_;  // 0 on a rank without KV heads, whose region has a single row
  const int64_t block_bytes_;
  const int64_t bytes_in_row_;  // of a block in a row of the region

  void* region_ = nullptr;
  std::vector<KvCacheView> layers_;
};

}  // namespace somnus
