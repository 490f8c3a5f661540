#pragma once
// The budget of host memory that several models share: how much backups of weights and kept KV blocks take,
// and which backup gives way to another model's backup. Pure functions, as in residency_policy.h; models are
// named by their index, as there.

#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/several_models/residency_policy.h"

namespace somnus {

// The host memory that no model holds or is promised. kNoBudget where the budget does not limit.
int64_t FreeHostBytes(const ResidencyOptions& options, const std::vector<ModelView>& models);

// The host memory that a sleep at level 1 takes for the weights, beyond the memory that the model holds.
int64_t MissingForBackup(const ModelView& model);

// How much host memory the model may take for KV blocks, if the model fell asleep at level 1 now, for a
// decision or for an operator.
int64_t MaxKeptBytes(const ResidencyOptions& options, const std::vector<ModelView>& models, int model);

// The model sleeps at level 1, no operator has asked for that level, and a checkpoint has the weights.
bool CanDropBackup(const ModelView& model);
// As CanDropBackup, and no request of the model is open.
bool MayDropBackup(const ModelView& model);

// The host memory that the model's backup could take at most, if all backups that a checkpoint can replace
// were dropped for that backup.
int64_t MostForBackup(const ResidencyOptions& options, const std::vector<ModelView>& models, int model);

// The candidates that together hold `missing` bytes, the least recently used first. Nullopt: all candidates
// together hold less.
std::optional<std::vector<int>> ChooseBackupsToDrop(const std::vector<ModelView>& models,
                                                    std::vector<int> candidates, int64_t missing);

// How an operator's sleep of a model at level 1 gets room for its backup.
struct BackupRoom {
  int64_t needed = 0;      // bytes beyond the bytes that the model holds
  int64_t missing = 0;     // bytes of `needed` that no model can give up
  bool is_free = false;    // the model may sleep now; else other models release memory first
  std::vector<int> drops;  // models that must drop a backup and have not been told
};
BackupRoom PlanBackupRoom(const ResidencyOptions& options, const std::vector<ModelView>& models, int model);

}  // namespace somnus
