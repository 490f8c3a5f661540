// SharedDevices' part for elastic KV caches: what a model takes with a cache of some size, what kv_shares.h
// is told of it, and the resizing, on a thread of its own while it lasts.

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/memory_tags.h"
#include "coordinator/residency/declined.h"
#include "coordinator/several_models/shared_devices.h"

namespace somnus {
namespace {

// A row's part that has memory may begin and end within a chunk. AllocateRows makes these as small as a
// sixteenth of a row, if the driver's granularity allows it: 2 MiB on hosts and on GPUs.
constexpr int64_t kLargestGranularity = 2 << 20;
constexpr int64_t kChunksOfRow = 16;
// Until a cache is asked again that could not give up all it was asked for.
constexpr absl::Duration kAskAgain = absl::Milliseconds(100);

int32_t NeededBlocks(const EngineStats& stats) {
  const int64_t block_size = std::max(1, stats.block_size);
  const int64_t waiting = (stats.waiting_tokens + block_size - 1) / block_size + stats.num_waiting;
  return static_cast<int32_t>(std::min<int64_t>(stats.used_blocks + waiting, stats.max_blocks));
}

bool Contains(const std::vector<std::string>& tags, const std::string& tag) {
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

// What the whole cache takes at most, where its rows have whole chunks; 0: that is not known.
int64_t WholeCacheBytes(const SharingModel& model, const EngineStats& stats) {
  const int64_t num_replicas = std::max<int64_t>(1, static_cast<int64_t>(stats.replicas.size()));
  const int64_t blocks = (stats.max_blocks + num_replicas) * model.kv_block_bytes;  // with null blocks
  const int64_t chunk = model.num_kv_rows > 0 ? model.num_kv_rows * kLargestGranularity : 1;
  return (blocks + chunk - 1) / chunk * chunk;
}

// Of device memory that the model holds, or will when its transition has ended.
int64_t PromisedBytes(const ModelView& view) {
  const bool sleeps = view.state == ModelState::kAsleep || view.state == ModelState::kDeepening ||
                      view.state == ModelState::kFailed;
  return sleeps ? view.resident_bytes : std::max(view.device_bytes, view.resident_bytes);
}

}  // namespace

void SharedDevices::InitKv(Model* model, const EngineStats& stats) {
  const auto cache = model->tag_bytes.find(kKvCacheTag);
  if (cache == model->tag_bytes.end() || cache->second == 0) return;
  // What a block takes can be told from a whole cache alone. One that was adopted may be smaller.
  if (stats.mapped_blocks < stats.max_blocks) cache->second = WholeCacheBytes(model->options, stats);
  if (cache->second == 0) return;
  KvState& kv = model->kv;
  kv.cache_bytes = cache->second;
  for (const auto& [tag, bytes] : model->tag_bytes) kv.other_bytes += tag == kKvCacheTag ? 0 : bytes;
  kv.max_blocks = stats.max_blocks;
  kv.mapped_blocks = stats.mapped_blocks;
  if (const int64_t rows = model->options.num_kv_rows; rows > 0)
    kv.slack_bytes = 2 * rows * std::max(kLargestGranularity, kv.cache_bytes / rows / kChunksOfRow);
  kv.block_bytes = (kv.cache_bytes + kv.max_blocks - 1) / kv.max_blocks;
  const int64_t wanted = model->options.min_kv_bytes / kv.block_bytes;
  kv.min_blocks = static_cast<int32_t>(std::clamp<int64_t>(wanted, stats.longest_blocks, stats.max_blocks));
}

void SharedDevices::NoteKv(Model* model, const EngineStats& stats) {
  KvState& kv = model->kv;
  kv.mapped_blocks = stats.mapped_blocks;
  const auto cache = stats.resident_bytes.find(kKvCacheTag);
  kv.resident_bytes = cache == stats.resident_bytes.end() ? 0 : cache->second;
  const int32_t needed = NeededBlocks(stats);
  const MonotonicTime now = options_.now();
  if (needed < kv.needed_blocks && now < kv.needed_at + options_.kv_hold) return;
  kv.needed_blocks = needed;
  kv.needed_at = now;
}

int64_t SharedDevices::DeviceBytesWith(const Model& model, int32_t blocks) {
  const KvState& kv = model.kv;
  const int64_t cache = (int64_t{blocks} + 1) * kv.block_bytes + kv.slack_bytes;
  return kv.other_bytes + std::min(cache, kv.cache_bytes);
}

// What is mapped is known; what is going to be is not, to the chunk.
int64_t SharedDevices::DeviceBytesOf(const Model& model, const ModelView& view) {
  const KvState& kv = model.kv;
  const int32_t blocks = std::max(kv.mapped_blocks, kv.target.value_or(0));
  const bool is_known =
      view.state == ModelState::kAwake && blocks == kv.mapped_blocks && kv.resident_bytes > 0;
  return is_known ? kv.other_bytes + kv.resident_bytes : DeviceBytesWith(model, blocks);
}

KvShareView SharedDevices::KvView(const Model& model, const ModelView& view) const {
  const KvState& kv = model.kv;
  KvShareView share;
  if (kv.block_bytes == 0 || kv.target.has_value()) return share;
  const OperatorWake* const wake = WakeOf(model);
  const bool brings_cache = wake == nullptr || wake->tags.empty() || Contains(wake->tags, kKvCacheTag);
  const bool waits = view.state == ModelState::kAsleep && !view.held_asleep && brings_cache &&
                     (view.open_requests > 0 || view.pinned) && options_.now() >= view.retry_at;
  share.state = view.state == ModelState::kAwake ? KvShareView::State::kAwake
                : waits                          ? KvShareView::State::kWaiter
                                                 : KvShareView::State::kOther;
  share.block_bytes = kv.block_bytes;
  share.other_bytes = DeviceBytesWith(model, 0) - view.resident_bytes;
  share.slack_bytes = kv.slack_bytes;
  if (share.state == KvShareView::State::kAwake && kv.resident_bytes > 0) {
    // Part of the cache's present memory is such slack already.
    const int64_t held = kv.resident_bytes - (int64_t{kv.mapped_blocks} + 1) * kv.block_bytes;
    share.slack_bytes = std::max<int64_t>(0, kv.slack_bytes - std::max<int64_t>(0, held));
    share.rest_bytes = std::max<int64_t>(0, kv.cache_bytes - kv.resident_bytes);
  }
  share.min_blocks = kv.min_blocks;
  share.max_blocks = kv.max_blocks;
  share.mapped_blocks = kv.mapped_blocks;
  share.needed_blocks = kv.needed_blocks;
  share.last_used = model.last_used;
  share.resized_at = kv.resized_at;
  return share;
}

MonotonicTime SharedDevices::ShareKv(MonotonicTime now, std::vector<ModelView>* views) {
  MonotonicTime again = absl::InfiniteDuration();
  int64_t free = options_.residency.device_memory_budget;
  if (free == kNoBudget) return again;
  std::vector<KvShareView> shares;
  bool elastic = false, resizes = false;
  for (size_t i = 0; i < views->size(); ++i) {
    const ModelView& view = (*views)[i];
    free -= PromisedBytes(view);
    shares.push_back(KvView(*models_[i], view));
    resizes |= models_[i]->kv.target.has_value();
    const bool busy = models_[i]->kv.block_bytes > 0 && view.open_requests > 0;
    elastic |= models_[i]->kv.block_bytes > 0;
    if (busy && view.state == ModelState::kAwake) again = now + options_.kv_period;
  }
  if (!elastic) return again;
  const KvSharesPlan plan = PlanKvShares(options_.kv_shares, now, free, shares);
  for (const KvResize& resize : plan.resizes)
    BeginResize(models_[resize.model].get(), resize.blocks, *models_[resize.for_model]);
  for (size_t i = 0; i < views->size(); ++i) {
    ModelView& view = (*views)[i];
    const bool fits = view.device_bytes - view.resident_bytes <= free;
    const MonotonicTime until = view.waiting_since + options_.kv_patience;
    const bool leaves_it = plan.served[i] || models_[i]->kv.target.has_value() || resizes;
    if (view.state != ModelState::kAsleep || fits || !leaves_it || now >= until) continue;
    if (view.waiting_since == absl::InfiniteDuration()) continue;  // pinned, without a request
    view.retry_at = std::max(view.retry_at, std::min(until, now + options_.kv_period));
  }
  return std::min(again, plan.look_again_at);
}

void SharedDevices::BeginResize(Model* model, int32_t blocks, const Model& for_model) {
  LogInfo("{}: the KV cache goes from {} to {} blocks{}", model->options.name, model->kv.mapped_blocks,
          blocks, model == &for_model ? "" : ", for " + for_model.options.name);
  const KvResizeReason reason = model != &for_model            ? KvResizeReason::kOthersLack
                                : model->kv.resident_bytes > 0 ? KvResizeReason::kCacheFull
                                                               : KvResizeReason::kRequestsWait;
  if (model->options.on_resize) model->options.on_resize(blocks > model->kv.mapped_blocks, reason);
  model->kv.target = blocks;
  if (Carry([this, model, blocks] { CarryOutResize(model, blocks); })) return;
  model->kv.resized_at = options_.now();
  model->kv.target.reset();
}

void SharedDevices::CarryOutResize(Model* model, int32_t blocks) {
  const absl::StatusOr<int32_t> mapped = model->engine->ResizeKvCache(blocks);
  absl::MutexLock lock(&mu_);
  KvState& kv = model->kv;
  const MonotonicTime now = options_.now();
  const bool grew = blocks > kv.mapped_blocks;
  if (!mapped.ok() || grew) {
    kv.resized_at = now;
  } else if (*mapped > blocks) {
    kv.resized_at = now - options_.kv_shares.min_stay + kAskAgain;
  }
  if (!mapped.ok() && !IsDeclined(mapped.status())) {
    LogWarning("{}: the KV cache keeps its size: {}", model->options.name,
               std::string(mapped.status().message()));
  }
  kv.target.reset();
}

}  // namespace somnus
