#pragma once
// How one of several models shares the devices: the settings with which SharedDevices::Add takes a model.
// Plain data.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "coordinator/several_models/kv_shares.h"
#include "coordinator/several_models/request_deadlines.h"
#include "coordinator/several_models/residency_policy.h"

namespace somnus {

// When weights that sleep at level 1 take memory of the host.
enum class BackupMemory {
  kAlways,
  // Unless a checkpoint has the weights: the checkpoint's files are the backup then, and the wake-up reads
  // the files.
  kOnlyCopy,
  kNever,
};

// How long the first request for a model that slept has waited until the model was awake.
struct ModelSwitch {
  absl::Duration room;  // until the wake-up began: other models had their turn, and slept
  absl::Duration wake_up;
};

struct SharingModel {
  std::string name;
  bool pinned = false;
  int priority = 0;
  TokenTargets targets;                                  // for ResidencyPolicy::kSlo
  absl::Duration idle_sleep = absl::InfiniteDuration();  // as ModelView::idle_sleep
  int idle_level = 1;                                    // as ModelView::idle_level
  BackupMemory backup_memory = BackupMemory::kAlways;
  bool compresses_backup = false;  // as ModelView::compresses_backup
  // Whether the KV cache shrinks and grows. The next two are sums over all workers of the model: the bytes
  // that the cache keeps at least, and the number of rows in which the cache lies. A row is made of whole
  // chunks of memory (SleepableAllocator::AllocateRows).
  bool elastic_kv = false;
  int64_t min_kv_bytes = 0;
  int64_t num_kv_rows = 0;
  // Summed over the workers of one replica; 0: computed from the size of the cache.
  int64_t kv_block_bytes = 0;
  // Called on a thread of SharedDevices; must not block. May be empty. on_resize: a resize of the model's KV
  // cache was decided. on_switch: the model has woken for requests.
  std::function<void(const ResidencyDecision&)> on_decision;
  std::function<void(bool grows, KvResizeReason reason)> on_resize;
  std::function<void(const ModelSwitch&)> on_switch;
};

}  // namespace somnus
