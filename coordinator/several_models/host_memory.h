#pragma once
// The budget of host memory that several models share: what backups of weights and kept KV blocks take of it,
// and whose backup gives way to another one. Pure functions, as residency_policy.h, and models are named by
// their index, too.

#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/several_models/residency_policy.h"

namespace somnus {

// What nobody holds and nobody is promised. kNoBudget where the budget does not limit.
int64_t FreeHostBytes(const ResidencyOptions& options, const std::vector<ModelView>& models);

// Of the host, that a sleep at level 1 takes for the weights beyond what the model holds.
int64_t MissingForBackup(const ModelView& model);

// How much host memory the model may take for KV blocks, if it slept at level 1 now, whoever asks for it.
int64_t MaxKeptBytes(const ResidencyOptions& options, const std::vector<ModelView>& models, int model);

// It sleeps at level 1, nobody has asked for that level, and a checkpoint has its weights.
bool CanDropBackup(const ModelView& model);
// And no request is open.
bool MayDropBackup(const ModelView& model);

// Of the host, what the model's backup could take at most, if all backups that a checkpoint can replace were
// dropped for it.
int64_t MostForBackup(const ResidencyOptions& options, const std::vector<ModelView>& models, int model);

// Those of `candidates` that together hold `missing` bytes, the least recently used first. Nullopt: all of
// them hold less.
std::optional<std::vector<int>> ChooseBackupsToDrop(const std::vector<ModelView>& models,
                                                    std::vector<int> candidates, int64_t missing);

// How an operator's sleep of a model at level 1 gets room for its backup.
struct BackupRoom {
  int64_t needed = 0;      // bytes beyond what the model holds
  int64_t missing = 0;     // of them, that there is no way to get
  bool is_free = false;    // it may sleep now; else others release memory first
  std::vector<int> drops;  // of those that do, the ones that have yet to be told
};
BackupRoom PlanBackupRoom(const ResidencyOptions& options, const std::vector<ModelView>& models, int model);

}  // namespace somnus
