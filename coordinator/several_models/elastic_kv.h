#pragma once
// The size of one model's elastic KV cache: how much device memory the model takes with a cache of some size,
// how many blocks the open requests have needed lately, and the resize that is under way.
//
// A value of ModelRecord, guarded by ModelRecords::mu; KvResizer drives the resizes. Blocks do not count the
// null block. Invariant: a cache that is not elastic has block_bytes_ 0, and nothing else is known of the
// cache.

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/engine/engine_stats.h"
#include "coordinator/residency/residency.h"
#include "coordinator/several_models/kv_shares.h"
#include "coordinator/several_models/sharing_model.h"

namespace somnus {

class ElasticKv {
 public:
  // `stats`: of the engine when the model is added. `tag_bytes`: device memory of the model while awake;
  // corrected where the whole cache takes more than what is mapped. Without a cache of known size the cache
  // is not elastic.
  void Init(const SharingModel& model, const EngineStats& stats, TagBytes* tag_bytes);

  bool is_elastic() const { return block_bytes_ > 0; }
  bool resizes() const { return target_.has_value(); }
  int32_t mapped_blocks() const { return mapped_blocks_; }
  int64_t resident_bytes() const { return resident_bytes_; }

  // Notes the cache's present size, and what the open requests need. The highest need counts for `hold`.
  void Note(const EngineStats& stats, MonotonicTime now, absl::Duration hold);

  // The device memory that the model takes at most with a cache of so many blocks.
  int64_t DeviceBytesWith(int32_t blocks) const;
  int64_t LeastDeviceBytes() const { return DeviceBytesWith(min_blocks_); }
  // The device memory that the model takes while awake, with the cache as it is or is going to be.
  int64_t DeviceBytes(bool is_awake) const;
  // The most by which a resize that is under way makes the mapped cache larger.
  int64_t PendingBytes() const;
  // The cache's part of the model's `device_bytes`.
  int64_t CacheBytes(int64_t device_bytes) const { return device_bytes - other_bytes_; }
  // The view that kv_shares.h is told. `resident_bytes`: device memory that the model holds now, the cache
  // included. last_used is left for the caller.
  KvShareView View(KvShareView::State state, int64_t resident_bytes) const;

  void BeginResize(int32_t blocks) { target_ = blocks; }
  // The resize to `blocks` has ended with `mapped` blocks. `min_stay`: as KvShareOptions::min_stay.
  void EndResize(int32_t blocks, const absl::StatusOr<int32_t>& mapped, MonotonicTime now,
                 absl::Duration min_stay);
  // The resize could not begin.
  void NoteUntried(MonotonicTime now);

 private:
  int64_t block_bytes_ = 0;  // 0: the cache is not elastic
  int64_t cache_bytes_ = 0;  // of the whole cache
  int64_t slack_bytes_ = 0;  // that a part of the cache may take beyond its blocks
  int64_t other_bytes_ = 0;  // device memory beside the cache
  int32_t min_blocks_ = 0;
  int32_t max_blocks_ = 0;
  int32_t mapped_blocks_ = 0;
  int64_t resident_bytes_ = 0;  // of the cache, now
  int32_t needed_blocks_ = 0;   // the highest need since `hold` ago
  MonotonicTime needed_at_ = -absl::InfiniteDuration();
  std::optional<int32_t> target_;  // of the resize that is under way
  MonotonicTime resized_at_ = -absl::InfiniteDuration();
};

}  // namespace somnus
