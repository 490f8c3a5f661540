#include "worker/runner/kv_cache.h"

#include <algorithm>
#include <utility>

#include "base/memory_tags.h"
#include "base/status_macros.h"
#include "worker/runner/model_sizes.h"

namespace somnus {
namespace {

// Bytes of a block of a layer; 0 on a rank without KV heads.
int64_t LayerBlockBytes(const Device& device, const ModelRunnerOptions& options, const ModelConfig& config,
                        const ModelShards& shards) {
  if (shards.kv_heads.empty()) return 0;
  return KvBlockBytes(device, CacheTypeOf(options), options.block_size, shards.kv_heads.size(),
                      config.head_dim);
}

}  // namespace

KvCache::KvCache(const ModelConfig* config, const ModelShards* shards, const ModelRunnerOptions& options,
                 Device* device, SleepableAllocator* allocator, int64_t min_block_bytes)
    : config_(*config),
      shards_(*shards),
      dtype_(CacheTypeOf(options)),
      block_size_(options.block_size),
      device_(*device),
      allocator_(*allocator),
      layer_block_bytes_(LayerBlockBytes(*device, options, *config, *shards)),
      block_bytes_(std::max(min_block_bytes, layer_block_bytes_ * shards->layers.size())),
      bytes_in_row_(layer_block_bytes_ > 0 ? layer_block_bytes_ : block_bytes_) {}

KvCache::~KvCache() { Free().IgnoreError(); }  // a destructor can do nothing about the error

int32_t KvCache::num_blocks() const {
  return layers_.empty() ? 0 : static_cast<int32_t>(layers_.front().num_blocks);
}

absl::Status KvCache::Allocate(int32_t num_blocks, int32_t num_mapped_blocks,
                               const std::vector<KvScales>& scales) {
  RETURN_IF_ERROR(Free());
  const int64_t row_bytes = RowBytes(num_blocks);
  if (row_bytes > 0) {
    const int64_t num_rows = layer_block_bytes_ > 0 ? shards_.layers.size() : 1;
    ASSIGN_OR_RETURN(region_,
                     allocator_.AllocateRows(kKvCacheTag, row_bytes, num_rows, RowBytes(num_mapped_blocks)));
  }
  for (int64_t layer = 0; layer < shards_.layers.size(); ++layer) {
    KvCacheView view;
    view.data = static_cast<uint8_t*>(region_) + layer * num_blocks * layer_block_bytes_;
    view.dtype = dtype_;
    view.num_blocks = num_blocks;
    view.block_size = block_size_;
    view.num_kv_heads = shards_.kv_heads.size();
    view.head_dim = config_.head_dim;
    if (!scales.empty()) {
      view.k_scale = scales[shards_.layers.begin + layer].k;
      view.v_scale = scales[shards_.layers.begin + layer].v;
    }
    layers_.push_back(view);
  }
  return absl::OkStatus();
}

absl::Status KvCache::Resize(int32_t num_mapped_blocks) {
  return region_ == nullptr ? absl::OkStatus() : allocator_.Resize(region_, RowBytes(num_mapped_blocks));
}

absl::Status KvCache::Free() {
  layers_.clear();
  return region_ == nullptr ? absl::OkStatus() : allocator_.Free(std::exchange(region_, nullptr));
}

absl::Status KvCache::Copy(absl::Span<const BlockCopyCall> calls, SideStage* side) const {
  if (layer_block_bytes_ == 0) return absl::OkStatus();
  for (const BlockCopyCall& call : calls) {
    const int64_t count = static_cast<int64_t>(call.src.size());
    ASSIGN_OR_RETURN(const int32_t* src, side->Stage(call.src.data(), count));
    ASSIGN_OR_RETURN(const int32_t* dst, side->Stage(call.dst.data(), count));
    CopyBlocks(device_, layers_.data(), static_cast<int64_t>(layers_.size()), src, dst, count);
  }
  return absl::OkStatus();
}

void KvCache::Swap(SwapDirection direction, const KvHostPool& pool, absl::Span<const BlockSwap> swaps) const {
  if (layer_block_bytes_ == 0) return;
  SwapBlocks(device_, layers_.data(), static_cast<int64_t>(layers_.size()), pool, direction, swaps.data(),
             static_cast<int64_t>(swaps.size()));
}

}  // namespace somnus
