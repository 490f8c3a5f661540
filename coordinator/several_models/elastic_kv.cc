#include "coordinator/several_models/elastic_kv.h"

#include <algorithm>

#include "base/memory_tags.h"

namespace somnus {
namespace {

// The mapped part of a row may begin and end within a chunk. AllocateRows makes chunks as small as a
// sixteenth of a row, if the driver's granularity allows chunks so small: 2 MiB on hosts and on GPUs.
constexpr int64_t kLargestGranularity = 2 << 20;
constexpr int64_t kChunksOfRow = 16;
// The pause until a cache that gave up less memory than was asked for is asked again.
constexpr absl::Duration kAskAgain = absl::Milliseconds(100);

int32_t NeededBlocks(const EngineStats& stats) {
  const int64_t block_size = std::max(1, stats.block_size);
  const int64_t waiting = (stats.waiting_tokens + block_size - 1) / block_size + stats.num_waiting;
  return static_cast<int32_t>(std::min<int64_t>(stats.used_blocks + waiting, stats.max_blocks));
}

// The most that the whole cache takes where its rows have whole chunks; 0: unknown.
int64_t WholeCacheBytes(const SharingModel& model, const EngineStats& stats) {
  const int64_t num_replicas = std::max<int64_t>(1, static_cast<int64_t>(stats.replicas.size()));
  const int64_t blocks = (stats.max_blocks + num_replicas) * model.kv_block_bytes;  // with null blocks
  const int64_t chunk = model.num_kv_rows > 0 ? model.num_kv_rows * kLargestGranularity : 1;
  return (blocks + chunk - 1) / chunk * chunk;
}

}  // namespace

void ElasticKv::Init(const SharingModel& model, const EngineStats& stats, TagBytes* tag_bytes) {
  const auto cache = tag_bytes->find(kKvCacheTag);
  if (cache == tag_bytes->end() || cache->second == 0) return;
  // Only the bytes of a whole cache tell the bytes of a block. An adopted cache may be smaller.
  if (stats.mapped_blocks < stats.max_blocks) cache->second = WholeCacheBytes(model, stats);
  if (cache->second == 0) return;
  cache_bytes_ = cache->second;
  for (const auto& [tag, bytes] : *tag_bytes) other_bytes_ += tag == kKvCacheTag ? 0 : bytes;
  max_blocks_ = stats.max_blocks;
  mapped_blocks_ = stats.mapped_blocks;
  if (const int64_t rows = model.num_kv_rows; rows > 0)
    slack_bytes_ = 2 * rows * std::max(kLargestGranularity, cache_bytes_ / rows / kChunksOfRow);
  block_bytes_ = (cache_bytes_ + max_blocks_ - 1) / max_blocks_;
  const int64_t wanted = model.min_kv_bytes / block_bytes_;
  min_blocks_ = static_cast<int32_t>(std::clamp<int64_t>(wanted, stats.longest_blocks, stats.max_blocks));
}

void ElasticKv::Note(const EngineStats& stats, MonotonicTime now, absl::Duration hold) {
  mapped_blocks_ = stats.mapped_blocks;
  const auto cache = stats.resident_bytes.find(kKvCacheTag);
  resident_bytes_ = cache == stats.resident_bytes.end() ? 0 : cache->second;
  const int32_t needed = NeededBlocks(stats);
  if (needed < needed_blocks_ && now < needed_at_ + hold) return;
  needed_blocks_ = needed;
  needed_at_ = now;
}

int64_t ElasticKv::DeviceBytesWith(int32_t blocks) const {
  const int64_t cache = (int64_t{blocks} + 1) * block_bytes_ + slack_bytes_;
  return other_bytes_ + std::min(cache, cache_bytes_);
}

// Memory that is mapped is known to the byte. Memory that is going to be mapped is not known to the chunk.
int64_t ElasticKv::DeviceBytes(bool is_awake) const {
  const int32_t blocks = std::max(mapped_blocks_, target_.value_or(0));
  const bool is_known = is_awake && blocks == mapped_blocks_ && resident_bytes_ > 0;
  return is_known ? other_bytes_ + resident_bytes_ : DeviceBytesWith(blocks);
}

int64_t ElasticKv::PendingBytes() const {
  if (resident_bytes_ == 0 || target_.value_or(0) <= mapped_blocks_) return 0;
  return std::max<int64_t>(0, CacheBytes(DeviceBytesWith(*target_)) - resident_bytes_);
}

KvShareView ElasticKv::View(KvShareView::State state, int64_t resident_bytes) const {
  KvShareView share;
  share.state = state;
  share.block_bytes = block_bytes_;
  share.other_bytes = DeviceBytesWith(0) - resident_bytes;
  share.slack_bytes = slack_bytes_;
  share.is_mapped = state != KvShareView::State::kOther && resident_bytes_ > 0;
  if (share.is_mapped) {
    // Part of the cache's present memory is slack already.
    const int64_t held = resident_bytes_ - (int64_t{mapped_blocks_} + 1) * block_bytes_;
    share.slack_bytes = std::max<int64_t>(0, slack_bytes_ - std::max<int64_t>(0, held));
    share.rest_bytes = std::max<int64_t>(0, cache_bytes_ - resident_bytes_);
  }
  share.min_blocks = min_blocks_;
  share.max_blocks = max_blocks_;
  share.mapped_blocks = mapped_blocks_;
  share.needed_blocks = needed_blocks_;
  share.resized_at = resized_at_;
  return share;
}

void ElasticKv::EndResize(int32_t blocks, const absl::StatusOr<int32_t>& mapped, MonotonicTime now,
                          absl::Duration min_stay) {
  const bool grew = blocks > mapped_blocks_;
  if (!mapped.ok() || grew) {
    resized_at_ = now;
  } else if (*mapped > blocks) {
    resized_at_ = now - min_stay + kAskAgain;
  }
  target_.reset();
}

void ElasticKv::NoteUntried(MonotonicTime now) {
  resized_at_ = now;
  target_.reset();
}

}  // namespace somnus
