#include "coordinator/several_models/host_memory.h"

#include <algorithm>
#include <tuple>

namespace somnus {
namespace {

// The host memory that the model takes until the transition that is under way has ended.
int64_t HostBytes(const ModelView& model) {
  const bool falls = model.state == ModelState::kDraining || model.state == ModelState::kFallingAsleep;
  const bool backs_up = model.is_promised_backup || (falls && model.level == 1);
  const int64_t held = model.held_bytes - model.held_kv_bytes;
  const int64_t weights = backs_up ? std::max(held, model.backup_bytes) : held;
  return weights + std::max(model.held_kv_bytes, model.max_kept_bytes) + model.adapter_bytes;
}

}  // namespace

int64_t FreeHostBytes(const ResidencyOptions& options, const std::vector<ModelView>& models) {
  int64_t free = options.host_memory_budget;
  if (free == kNoBudget) return free;
  for (const ModelView& model : models) free -= HostBytes(model);
  return free;
}

// A retained backup lacks the parts of the ranks that were lost since. Where compression makes backups
// smaller than the weights, a retained backup counts as whole.
int64_t MissingForBackup(const ModelView& model) {
  const int64_t held = model.held_bytes - model.held_kv_bytes;
  if (held > 0 && model.compresses_backup) return 0;
  return std::max<int64_t>(0, model.backup_bytes - held);
}

int64_t MaxKeptBytes(const ResidencyOptions& options, const std::vector<ModelView>& models, int model) {
  const int64_t free = FreeHostBytes(options, models);
  if (free == kNoBudget) return kNoBudget;
  return std::max<int64_t>(0, free - MissingForBackup(models[model]) + models[model].held_kv_bytes);
}

bool CanDropBackup(const ModelView& model) {
  return model.state == ModelState::kAsleep && model.level == 1 && !model.level_is_asked &&
         !model.only_copy && model.held_bytes > 0;
}

bool MayDropBackup(const ModelView& model) { return CanDropBackup(model) && model.open_requests == 0; }

int64_t MostForBackup(const ResidencyOptions& options, const std::vector<ModelView>& models, int model) {
  int64_t most = options.host_memory_budget;
  if (most == kNoBudget) return most;
  for (int i = 0; i < static_cast<int>(models.size()); ++i) {
    const bool goes = models[i].state == ModelState::kDeepening || CanDropBackup(models[i]);
    most -= i != model && !goes ? HostBytes(models[i]) : models[i].adapter_bytes;
  }
  return most;
}

std::optional<std::vector<int>> ChooseBackupsToDrop(const std::vector<ModelView>& models,
                                                    std::vector<int> candidates, int64_t missing) {
  std::sort(candidates.begin(), candidates.end(), [&](int a, int b) {
    return std::tuple(models[a].last_used, a) < std::tuple(models[b].last_used, b);
  });
  std::vector<int> chosen;
  for (const int candidate : candidates) {
    if (missing <= 0) break;
    missing -= models[candidate].held_bytes;
    chosen.push_back(candidate);
  }
  if (missing > 0) return std::nullopt;
  return chosen;
}

BackupRoom PlanBackupRoom(const ResidencyOptions& options, const std::vector<ModelView>& models, int model) {
  BackupRoom room;
  room.needed = MissingForBackup(models[model]);
  const int64_t free = FreeHostBytes(options, models);
  room.is_free = room.needed == 0 || room.needed <= free;
  if (room.is_free) return room;
  room.missing = room.needed - free;
  int64_t dropped = 0;
  std::vector<int> candidates;
  for (int i = 0; i < static_cast<int>(models.size()); ++i) {
    if (models[i].state == ModelState::kDeepening) room.missing -= models[i].held_bytes;
    if (i == model || !MayDropBackup(models[i])) continue;
    candidates.push_back(i);
    dropped += models[i].held_bytes;
  }
  if (auto drops = ChooseBackupsToDrop(models, std::move(candidates), room.missing)) {
    room.drops = *std::move(drops);
    room.missing = 0;
  } else {
    room.missing -= dropped;
  }
  return room;
}

}  // namespace somnus
