#include "coordinator/several_models/kv_resizer.h"

#include <algorithm>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "coordinator/residency/declined.h"

namespace somnus {
namespace {

bool Contains(const std::vector<std::string>& tags, const std::string& tag) {
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

// The device memory that the model holds, or will hold when its transition has ended.
int64_t PromisedBytes(const ModelView& view) {
  const bool sleeps = view.state == ModelState::kAsleep || view.state == ModelState::kDeepening ||
                      view.state == ModelState::kFailed;
  return sleeps ? view.resident_bytes : std::max(view.device_bytes, view.resident_bytes);
}

}  // namespace

KvShareView KvResizer::View(const ModelRecord& model, const ModelView& view, MonotonicTime now) const {
  if (!model.kv.is_elastic() || model.kv.resizes()) return {};
  const OperatorWake* const wake = model.Wake();
  const bool brings_cache =
      wake == nullptr || wake->call.tags.empty() || Contains(wake->call.tags, kKvCacheTag);
  const bool waits = view.state == ModelState::kAsleep && !view.held_asleep && brings_cache &&
                     (view.open_requests > 0 || view.pinned) && now >= view.retry_at;
  const KvShareView::State state = view.state == ModelState::kAwake ? KvShareView::State::kAwake
                                   : waits                          ? KvShareView::State::kWaiter
                                                                    : KvShareView::State::kOther;
  KvShareView share = model.kv.View(state, view.resident_bytes);
  share.last_used = model.last_used;
  return share;
}

MonotonicTime KvResizer::Share(MonotonicTime now, std::vector<ModelView>* views) {
  MonotonicTime again = absl::InfiniteDuration();
  int64_t free = models_.options().residency.device_memory_budget;
  if (free == kNoBudget) return again;
  std::vector<KvShareView> shares;
  bool is_elastic = false, resizes = false;
  for (const std::unique_ptr<ModelRecord>& model : models_.all()) {
    const ModelView& view = (*views)[model->index];
    free -= PromisedBytes(view);
    shares.push_back(View(*model, view, now));
    resizes |= model->kv.resizes();
    is_elastic |= model->kv.is_elastic();
    const bool is_busy = model->kv.is_elastic() && view.open_requests > 0;
    if (is_busy && view.state == ModelState::kAwake) again = now + models_.options().kv_period;
  }
  if (!is_elastic) return again;
  const KvSharesPlan plan = PlanKvShares(models_.options().kv_shares, now, free, shares);
  for (const KvResize& resize : plan.resizes) {
    ModelView& view = (*views)[resize.model];
    const ElasticKv& kv = models_.at(resize.model).kv;
    const bool is_awake = view.state == ModelState::kAwake;
    const int64_t before = kv.DeviceBytes(is_awake), pending_before = kv.PendingBytes();
    Begin(resize);
    // The policy decides by the same views: the growth's memory is not free for a wake-up any more. The
    // mapped cache of a model whose other tags sleep takes the memory, too.
    const int64_t growth = std::max<int64_t>(0, kv.DeviceBytes(is_awake) - before);
    const int64_t pending = kv.PendingBytes() - pending_before;
    view.device_bytes += growth;
    view.resident_bytes += pending;
    free -= is_awake ? growth : pending;
  }
  LetWait(plan, resizes, free, now, views);
  return std::min(again, plan.look_again_at);
}

void KvResizer::LetWait(const KvSharesPlan& plan, bool resizes, int64_t free, MonotonicTime now,
                        std::vector<ModelView>* views) const {
  const SharedDevicesOptions& options = models_.options();
  for (size_t i = 0; i < views->size(); ++i) {
    ModelView& view = (*views)[i];
    const bool fits = view.device_bytes - view.resident_bytes <= free;
    const MonotonicTime until = view.waiting_since + options.kv_patience;
    const bool is_served = plan.served[i] || models_.all()[i]->kv.resizes() || resizes;
    if (view.state != ModelState::kAsleep || fits || !is_served || now >= until) continue;
    if (view.waiting_since == absl::InfiniteDuration()) continue;  // pinned, without a request
    view.retry_at = std::max(view.retry_at, std::min(until, now + options.kv_period));
  }
}

void KvResizer::Begin(const KvResize& resize) {
  ModelRecord* const model = &models_.at(resize.model);
  ElasticKv& kv = model->kv;
  const bool for_itself = resize.model == resize.for_model;
  LogInfo("{}: the KV cache goes from {} to {} blocks{}", model->options.name, kv.mapped_blocks(),
          resize.blocks, for_itself ? "" : ", for " + models_.at(resize.for_model).options.name);
  const KvResizeReason reason = !for_itself               ? KvResizeReason::kOthersLack
                                : kv.resident_bytes() > 0 ? KvResizeReason::kCacheFull
                                                          : KvResizeReason::kRequestsWait;
  if (model->options.on_resize) model->options.on_resize(resize.blocks > kv.mapped_blocks(), reason);
  kv.BeginResize(resize.blocks);
  if (!threads_.Carry([this, model, blocks = resize.blocks] { CarryOut(model, blocks); }))
    kv.NoteUntried(models_.now());
}

void KvResizer::CarryOut(ModelRecord* model, int32_t blocks) {
  const absl::StatusOr<int32_t> mapped = model->engine->ResizeKvCache(blocks);
  if (!mapped.ok() && !IsDeclined(mapped.status())) {
    LogWarning("{}: the KV cache keeps its size: {}", model->options.name,
               std::string(mapped.status().message()));
  }
  absl::MutexLock lock(&models_.mu);
  model->kv.EndResize(blocks, mapped, models_.now(), models_.options().kv_shares.min_stay);
}

}  // namespace somnus
