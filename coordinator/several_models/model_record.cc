#include "coordinator/several_models/model_record.h"

#include <algorithm>
#include <utility>

#include "base/memory_tags.h"

namespace somnus {
namespace {

int64_t BytesOf(const std::string& tag, const TagBytes& bytes) {
  const auto found = bytes.find(tag);
  return found == bytes.end() ? 0 : found->second;
}

}  // namespace

int64_t SumOfTags(const TagBytes& bytes) {
  int64_t sum = 0;
  for (const auto& [tag, count] : bytes) sum += count;
  return sum;
}

ModelRecord::ModelRecord(int index, SharingModel model_options, const SharedDevicesOptions& devices)
    : index(index),
      options(std::move(model_options)),
      deadlines(options.targets, devices.now),
      operators(/*holds_requests=*/devices.arrivals != SleepArrivals::kWake),
      transition(devices.retry),
      revival(devices.revival_pause, devices.longest_revival_pause) {}

void ModelRecord::SetEngine(Engine* made, MonotonicTime now) {
  const EngineStats stats = made->Stats();
  engine = made;
  transition.awake_since = last_used = now;
  tag_bytes = stats.resident_bytes;
  for (const auto& [tag, bytes] : stats.sleeping_bytes) tag_bytes[tag] += bytes;
  if (options.elastic_kv) kv.Init(options, stats, &tag_bytes);
  device_bytes = SumOfTags(tag_bytes);
  weights_bytes = BytesOf(kWeightsTag, tag_bytes);
}

const OperatorWake* ModelRecord::Wake() const {
  if (transition.wakes()) return transition.carried_wake();
  const OperatorWake* const wanted = operators.wanted();
  return wanted != nullptr && !wanted->result.has_value() ? wanted : nullptr;
}

bool ModelRecord::IsWakeCarriedOut() const {
  const OperatorWake* const carried = transition.carried_wake();
  const OperatorWake* const wanted = operators.wanted();
  return carried != nullptr && wanted != nullptr && carried->id == wanted->id;
}

bool ModelRecord::LacksWeights(const EngineStats& stats) const {
  return stats.needs_weights || (operators.staged() && stats.residency.weights_stale());
}

int64_t ModelRecord::BytesAfter(const EngineStats& stats, const ModelView& view,
                                const std::vector<std::string>& tags) const {
  int64_t bytes = stats.state == EngineState::kRecovering ? RecoveredBytes(stats, view) : view.resident_bytes;
  for (const std::string& tag : stats.residency.ToWake(tags)) {
    if (stats.residency.asleep().count(tag) == 0) continue;  // stale weights
    bytes += AwakeBytesOf(tag, view);
  }
  return bytes;
}

int64_t ModelRecord::AwakeBytesOf(const std::string& tag, const ModelView& view) const {
  const bool elastic = tag == kKvCacheTag && kv.is_elastic();
  return elastic ? kv.CacheBytes(view.device_bytes) : BytesOf(tag, tag_bytes);
}

int64_t ModelRecord::RecoveredBytes(const EngineStats& stats, const ModelView& view) const {
  int64_t bytes = 0;
  for (const auto& [tag, count] : tag_bytes) {
    if (stats.residency.asleep().count(tag) == 0) bytes += AwakeBytesOf(tag, view);
  }
  return std::max(bytes, view.resident_bytes);
}

int64_t ModelRecord::BackupBytes(const EngineStats& stats) const {
  const TagState weights = stats.residency.state(kWeightsTag);
  // A sleep that is asked for during a wake-up comes after the wake-up.
  const bool comes = transition.wakes();
  if (weights != TagState::kResident && weights != TagState::kBackedUp && !comes) return 0;
  const bool takes = options.backup_memory == BackupMemory::kAlways ||
                     (options.backup_memory == BackupMemory::kOnlyCopy && stats.only_copy);
  return takes ? weights_bytes : 0;
}

ModelView ModelRecord::View(MonotonicTime now, absl::Duration kv_hold) {
  const EngineStats stats = engine->Stats();
  ModelView view;
  view.state = transition.State(stats.state);
  view.level = transition.decision.has_value() ? transition.decision->level : stats.sleep_level;
  if (view.state == ModelState::kDeepening) view.level = 1;
  view.pinned = options.pinned;
  view.priority = options.priority;
  view.idle_sleep = options.idle_sleep;
  view.idle_level = options.idle_level;
  operators.EndStage(stats.state);
  if (view.state == ModelState::kAwake) operators.NoteAwake();
  const OperatorWake* const wake = Wake();
  // A request does not end a pause either.
  view.held_asleep = wake == nullptr && (operators.held_asleep() || stats.paused || LacksWeights(stats));
  view.held_awake = operators.holds_memory();
  view.paused = stats.paused;
  if (kv.is_elastic()) kv.Note(stats, now, kv_hold);
  ViewDeviceMemory(stats, wake, &view);
  ViewHostMemory(stats, &view);
  ViewRequests(wake, now, &view);
  view.stay_told = transition.stay_told;
  view.prefetched = transition.prefetched;
  view.awake_since = transition.awake_since;
  view.retry_at = transition.retries.retry_at();
  view.switch_time = transition.sleep_time + transition.wake_up_time;
  view.step_time = stats.decode_step_time;
  view.tpot_target = options.targets.tpot;
  return view;
}

void ModelRecord::ViewDeviceMemory(const EngineStats& stats, const OperatorWake* wake,
                                   ModelView* view) const {
  // A cache that stays mapped while other tags sleep grows on.
  view->resident_bytes = SumOfTags(stats.resident_bytes) + kv.PendingBytes();
  view->device_bytes = kv.is_elastic() ? kv.DeviceBytes(view->state == ModelState::kAwake) : device_bytes;
  // A model that is brought up asleep takes the memory of the tags that do not sleep. A wake-up that a loss
  // has interrupted goes on once the model is brought up, and keeps its memory.
  const bool recovers_asleep =
      stats.state == EngineState::kRecovering && !stats.residency.asleep().empty() && !transition.wakes();
  if (recovers_asleep) view->device_bytes = RecoveredBytes(stats, *view);
  if (revives) view->device_bytes = view->resident_bytes;
  if (wake != nullptr && !wake->call.tags.empty() && !IsResident(stats.state))
    view->device_bytes = BytesAfter(stats, *view, wake->call.tags);
  if (view->state != ModelState::kAsleep || view->held_awake) return;
  for (const auto& [tag, bytes] : stats.resident_bytes) {
    if (stats.residency.asleep().count(tag) == 0) view->idle_bytes += bytes;
  }
}

void ModelRecord::ViewHostMemory(const EngineStats& stats, ModelView* view) const {
  view->backup_bytes = BackupBytes(stats);
  // A rank that came later has no backup, and the sum of the others says nothing of its size.
  view->compresses_backup = options.compresses_backup && stats.group_epoch == backup_epoch;
  view->reads_backup = options.backup_memory == BackupMemory::kOnlyCopy && !stats.only_copy;
  view->adapter_bytes = BytesOf(kWorkspaceTag, stats.host_bytes);  // the workspace holds nothing else there
  view->held_bytes = SumOfTags(stats.host_bytes) - view->adapter_bytes;
  view->held_kv_bytes = BytesOf(kKvCacheTag, stats.host_bytes);
  view->kv_bytes = stats.keepable_bytes;
  view->max_kept_bytes = operators.promised_kept_bytes();
  if (transition.decision.has_value())
    view->max_kept_bytes = std::max(view->max_kept_bytes, transition.decision->max_kept_bytes);
  view->is_promised_backup = operators.is_promised_backup();
  view->level_is_asked = operators.level_is_asked();
  view->only_copy = stats.only_copy;
}

void ModelRecord::ViewRequests(const OperatorWake* wake, MonotonicTime now, ModelView* view) {
  view->open_requests = static_cast<int32_t>(num_open + (wake == nullptr ? 0 : 1));
  const bool waits = view->state != ModelState::kAwake && view->open_requests > 0;
  waiting_since = waits ? std::min(waiting_since, now) : absl::InfiniteDuration();
  view->waiting_since = waiting_since;
  view->last_used = last_used;
  view->deadline = deadlines.Earliest();
}

}  // namespace somnus
