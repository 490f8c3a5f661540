#include "tests/simulation/models_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/memory_tags.h"
#include "tests/simulation/simulated_worker.h"

namespace somnus::simulation {
namespace {

// A cache of so many blocks has chunks of one block, so an elastic cache takes no byte beyond its blocks.
constexpr int64_t kElasticBlocks = 16;
constexpr int32_t kElasticBlockSize = 8;

// The device memory of a model that is awake, over all ranks.
int64_t DeviceBytes(const Site& site, const Flags& flags) {
  return flags.world_size * (WeightBytesOf(site) + kWorkspaceBytes + flags.kv_cache_memory_bytes);
}

// Flags that all models share.
Flags DrawCommonFlags(Site* site) {
  Random& random = site->world.random();
  Flags flags;
  const bool elastic = random.Chance(0.4);
  if (elastic) site->model.block_size = kElasticBlockSize;
  DrawGroup(&random, &flags);
  DrawSteps(site, &flags);
  DrawMemory(site, &flags);
  flags.elastic_kv_cache = elastic;
  flags.engine.wake_self_check = random.Chance(0.3);
  const SleepArrivals kOthers[] = {SleepArrivals::kWake, SleepArrivals::kReject};
  flags.auto_sleep.arrivals = random.Chance(0.7) ? SleepArrivals::kQueue : kOthers[random.Between(0, 1)];
  for (int i = 0; i < site->num_models; ++i) {
    const std::string letter(1, static_cast<char>('k' + i));
    flags.models.push_back({.name = absl::StrCat("model ", i), .path = absl::StrCat("checkpoint-", letter)});
  }
  return flags;
}

// How the model shares the devices; `slo`: the policy is ResidencyPolicy::kSlo.
SharingModel DrawSharing(Random* random, const Flags& flags, bool slo) {
  SharingModel sharing{.name = flags.served_model_name, .priority = static_cast<int>(random->Between(0, 2))};
  if (slo && random->Chance(0.7)) {
    sharing.targets.ttft = random->Between(absl::Milliseconds(50), absl::Seconds(2));
    sharing.targets.tpot = random->Between(absl::Milliseconds(2), absl::Milliseconds(100));
  }
  if (random->Chance(0.4)) sharing.idle_sleep = random->Between(absl::Milliseconds(50), absl::Seconds(2));
  sharing.idle_level = static_cast<int>(random->Between(1, 2));
  if (flags.backup == v1::BACKUP_POLICY_FILE)
    sharing.backup_memory = flags.spill_dir.empty() ? BackupMemory::kOnlyCopy : BackupMemory::kNever;
  sharing.compresses_backup = flags.backup == v1::BACKUP_POLICY_COMPRESS;
  sharing.elastic_kv = flags.elastic_kv_cache;
  return sharing;
}

// The first model is pinned where two models are left to share the rest.
void DrawPin(Random* random, ModelsPlan* plan) {
  if (plan->models.size() > 2 && random->Chance(0.3)) plan->models[0].sharing.pinned = true;
}

void DrawBudgets(Site* site, ModelsPlan* plan, bool bounds_host) {
  Random& random = site->world.random();
  int64_t pinned = 0, largest = 0, all = 0, backups = 0;
  for (const ModelPlan& model : plan->models) {
    const int64_t bytes = DeviceBytes(*site, model.engine.flags);
    all += bytes;
    backups += model.engine.flags.world_size * WeightBytesOf(*site);
    if (model.sharing.pinned) {
      pinned += bytes;
    } else {
      largest = std::max(largest, bytes);
    }
  }
  ResidencyOptions& residency = plan->devices.residency;
  residency.device_memory_budget = random.Between(pinned + largest, all - 1);
  if (!bounds_host) return;
  residency.host_memory_budget = random.Between(1, 2 * backups);
  for (ModelPlan& model : plan->models) {
    Flags& flags = model.engine.flags;
    flags.host_memory_budget = residency.host_memory_budget;
    // A few bytes grow by compression, beyond the bytes that are promised to a backup.
    if (flags.backup == v1::BACKUP_POLICY_COMPRESS) flags.backup = v1::BACKUP_POLICY_RETAIN;
  }
}

void DrawTimes(Random* random, ModelsPlan* plan) {
  SharedDevicesOptions& devices = plan->devices;
  devices.residency.turn = random->Between(absl::Milliseconds(5), absl::Milliseconds(500));
  devices.residency.minimum_stay = random->Between(absl::ZeroDuration(), absl::Milliseconds(100));
  // Simulated models switch in a time in which all requests could end.
  if (random->Chance(0.7)) devices.residency.stay_factor = 0;
  devices.residency.max_wait = random->Between(absl::Milliseconds(100), absl::Seconds(4));
  devices.retry.first_pause = random->Between(absl::Milliseconds(50), absl::Seconds(1));
  devices.operator_wait = random->Between(absl::Seconds(5), absl::Seconds(30));
  devices.kv_hold = random->Between(absl::Milliseconds(10), absl::Seconds(2));
  devices.kv_patience = random->Between(absl::ZeroDuration(), absl::Seconds(1));
}

}  // namespace

ModelsPlan DrawModelsPlan(Site* site) {
  Random& random = site->world.random();
  ModelsPlan plan;
  site->num_models = static_cast<int>(random.Between(2, 3));
  const Flags common = DrawCommonFlags(site);
  const bool slo = random.Chance(0.4);
  plan.devices.residency.policy = slo ? ResidencyPolicy::kSlo : ResidencyPolicy::kFifo;
  plan.devices.arrivals = common.auto_sleep.arrivals;
  const bool keeps_cached_blocks = random.Chance(0.7);
  for (const ModelPath& path : common.models) {
    const int number = static_cast<int>(plan.models.size());
    ModelPlan& model = plan.models.emplace_back();
    model.engine.flags = common;
    Flags& own = model.engine.flags;
    own.model = path.path;
    own.served_model_name = path.name;
    own.cluster_port += number;
    own.world_size = static_cast<int32_t>(random.Between(1, 2));
    own.kv_cache_memory_bytes =
        (own.elastic_kv_cache ? kElasticBlocks : random.Between(20, 40)) * FakeVmmDriver::kUnit;
    model.engine.keeps_cached_blocks = keeps_cached_blocks;
    model.sharing = DrawSharing(&random, own, slo);
    site->weights[number][1] = own.model.back();
  }
  DrawPin(&random, &plan);
  DrawBudgets(site, &plan, random.Chance(0.3));
  DrawTimes(&random, &plan);
  return plan;
}

}  // namespace somnus::simulation
