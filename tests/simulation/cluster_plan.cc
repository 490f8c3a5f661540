#include "tests/simulation/cluster_plan.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "allocator/piece_codec.h"
#include "coordinator/scheduler/worker_drafts.h"
#include "tests/simulation/foreseer.h"
#include "worker/model/shards.h"

namespace somnus::simulation {

namespace {

constexpr double kReplicasProbability = 0.25;
constexpr double kWindowProbability = 0.3;
constexpr uint64_t kWindowSalt = 0x77696e646f77;
constexpr uint64_t kStagesSalt = 0x737461676573;

}  // namespace

void DrawGroup(Random* random, Flags* flags) {
  flags->model = "simulated";
  flags->worker_binary = "/proc/self/exe";
  flags->device = v1::DEVICE_TYPE_CPU;
  flags->world_size = static_cast<int32_t>(random->Between(1, 3));
  flags->local_workers = random->Chance(0.6);
  flags->cluster_host = "host";
  flags->cluster_port = 1;
}

void DrawSteps(Site* site, Flags* flags) {
  Random& random = site->world.random();
  flags->engine.scheduler.blocks.block_size = site->model.block_size;
  flags->max_model_len = 64;
  flags->kv_cache_memory_bytes = random.Between(20, 48) * FakeVmmDriver::kUnit;
  flags->engine.scheduler.max_num_seqs = static_cast<int32_t>(random.Between(2, site->model.max_num_seqs));
  flags->engine.scheduler.max_num_batched_tokens = static_cast<int32_t>(random.Between(8, 48));
  flags->engine.scheduler.speculation.num_speculative_tokens =
      2 * (flags->engine.scheduler.max_num_batched_tokens % 4);
  if (flags->engine.scheduler.max_num_seqs % 2 == 0) flags->speculative = "draft";
  if (flags->has_draft_model()) {
    flags->draft_model = "draft";
    site->model.max_proposals = flags->engine.scheduler.speculation.num_speculative_tokens;
    site->model.wrong_period = 7;
  }
  flags->engine.async_scheduling = random.Chance(0.7);
  flags->engine.scheduler.policy = random.Chance(0.3) ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
}

void DrawMemory(Site* site, Flags* flags) {
  Random& random = site->world.random();
  constexpr v1::BackupPolicy kPolicies[] = {v1::BACKUP_POLICY_RETAIN, v1::BACKUP_POLICY_RELEASE,
                                            v1::BACKUP_POLICY_FILE};
  flags->backup = kPolicies[std::min<int64_t>(random.Between(0, 3), 2)];
  const int64_t cache_units = flags->kv_cache_memory_bytes / FakeVmmDriver::kUnit;
  if (flags->backup == v1::BACKUP_POLICY_RETAIN && cache_units % 2 == 0 && CheckCompression().ok())
    flags->backup = v1::BACKUP_POLICY_COMPRESS;
  // Of files the checkpoint's own are the backup, or spill files.
  site->spills = flags->backup == v1::BACKUP_POLICY_FILE && random.Chance(0.5);
  if (site->spills) flags->spill_dir = std::string(Disk::kDir);
  flags->keep_kv_on_sleep = random.Chance(0.5);
  flags->swap_space_bytes = random.Between(1, 24) * FakeVmmDriver::kUnit;
  flags->engine.scheduler.preemption =
      random.Chance(0.6) ? PreemptionMode::kSwap : PreemptionMode::kRecompute;
  if (cache_units % 3 == 0) flags->engine.scheduler.host_prefix_caching = HostPrefixCaching::kOn;
}

namespace {

// Some models have a window on every layer. From separate random numbers, as below.
void DrawWindow(uint64_t seed, const Flags& flags, FakeWorkerOptions* model) {
  Random random(seed ^ kWindowSalt);
  if (!flags.has_draft_model() && random.Chance(kWindowProbability))
    model->window = static_cast<int32_t>(random.Between(2, 40));
}

// From separate random numbers: a cluster with a single replica is the cluster that the seed gave before
// there were several replicas.
void DrawReplicas(uint64_t seed, ClusterPlan* plan) {
  Random random(~seed);
  if (!random.Chance(kReplicasProbability)) return;
  plan->flags.data_parallel_size = static_cast<int32_t>(random.Between(2, 3));
  plan->rolls = random.Chance(0.5);
  plan->flags.replica_retry_pause = random.Chance(0.5) ? absl::Seconds(1) : absl::ZeroDuration();
}

std::vector<int32_t> DrawPartition(Random* random, int32_t num_stages, int32_t num_layers) {
  std::vector<int32_t> layers(num_stages, 1);
  for (int32_t rest = num_layers - num_stages; rest > 0; --rest) ++layers[random->Between(0, num_stages - 1)];
  return layers;
}

// The layers of the stage that has most.
int64_t MostLayers(const Flags& flags, int32_t num_layers) {
  PipelinePlace place = {.num_stages = flags.pipeline_parallel_size,
                         .stage_layers = flags.pipeline_layer_partition};
  int64_t most = 0;
  for (; place.stage < place.num_stages; ++place.stage)
    most = std::max(most, StageLayers(place, num_layers).size());
  return most;
}

// From separate random numbers, too. A draft model does not go with stages. The stage with most layers has as
// many blocks as a rank without stages.
void DrawStages(uint64_t seed, Site* site, Flags* flags) {
  Random random(seed ^ kStagesSalt);
  flags->pipeline_parallel_size = random.Chance(0.7) ? 2 : 3;
  const bool shares_layers = flags->data_parallel_size == 1 && random.Chance(0.4);
  flags->world_size = flags->pipeline_parallel_size * (shares_layers ? 2 : 1);
  flags->speculative.clear();
  flags->draft_model.clear();
  site->model.max_proposals = site->model.wrong_period = 0;
  site->has_stages = true;
  site->num_layers = static_cast<int>(random.Between(flags->pipeline_parallel_size, 6));
  if (random.Chance(0.5))
    flags->pipeline_layer_partition = DrawPartition(&random, flags->pipeline_parallel_size, site->num_layers);
  const int64_t most = MostLayers(*flags, site->num_layers);
  flags->kv_cache_memory_bytes *= most;
  flags->swap_space_bytes *= most;
  if (random.Chance(0.3))
    site->slow_stage = static_cast<int>(random.Between(0, flags->pipeline_parallel_size - 1));
}

// How many steps may be in flight.
int MostSteps(const Flags& flags) {
  return flags.engine.async_scheduling ? std::max(2, flags.pipeline_parallel_size) : 1;
}

}  // namespace

ClusterPlan DrawPlan(Site* site, uint64_t seed, bool with_stages) {
  Random& random = site->world.random();
  ClusterPlan plan;
  Flags& flags = plan.flags;
  DrawGroup(&random, &flags);
  DrawSteps(site, &flags);
  DrawMemory(site, &flags);
  flags.engine.wake_self_check = random.Chance(0.5);
  if (random.Chance(0.2))
    flags.auto_sleep.arrivals = random.Chance(0.5) ? SleepArrivals::kWake : SleepArrivals::kReject;
  if (random.Chance(0.2))
    flags.auto_sleep.idle_sleep = random.Between(absl::Milliseconds(50), absl::Seconds(1));
  plan.keeps_cached_blocks = random.Chance(0.7);
  plan.resizes = random.Chance(0.5);
  plan.idle_level = random.Chance(0.5) ? 1 : 2;
  site->has_run_dir = flags.local_workers && random.Chance(0.5);
  if (site->has_run_dir) flags.run_dir = "/run-dir";
  // Without a run directory local workers end with their coordinator.
  const bool may_die = site->has_run_dir || !flags.local_workers;
  if (may_die && random.Chance(0.4)) plan.num_coordinator_deaths = static_cast<int>(random.Between(1, 2));
  site->weights[0][1] = flags.model.back();
  DrawReplicas(seed, &plan);
  if (with_stages) DrawStages(seed, site, &flags);
  DrawWindow(seed, flags, &site->model);
  site->num_replicas = flags.data_parallel_size;
  site->steps.SetShape(flags.world_size, flags.pipeline_parallel_size, MostSteps(flags));
  return plan;
}

EngineOptions MakeEngineOptions(const ClusterPlan& plan, const KvPlan& cache, Site* site, int model) {
  const Flags& flags = plan.flags;
  EngineOptions options = flags.engine;
  options.scheduler.max_model_len = cache.max_model_len;
  options.scheduler.num_stages = flags.pipeline_parallel_size;
  options.scheduler.fills_stages = options.async_scheduling;
  options.scheduler.speculation.asks_workers = flags.has_draft_model();
  options.scheduler.speculation.make_drafter = [asks = flags.has_draft_model(), site,
                                                model]() -> std::unique_ptr<Drafter> {
    if (asks) return std::make_unique<WorkerDrafts>();
    return std::make_unique<Foreseer>(site, model);
  };
  options.scheduler.preemption = MaySwap(flags) ? PreemptionMode::kSwap : PreemptionMode::kRecompute;
  if (!CachesOnHost(flags)) options.scheduler.host_prefix_caching = HostPrefixCaching::kOff;
  options.scheduler.blocks.num_blocks = cache.num_blocks;
  options.scheduler.blocks.num_host_blocks = cache.num_host_blocks;
  options.scheduler.blocks.attention_reach = site->model.window;
  options.keep_kv_on_sleep = KeepsKvOnSleep(flags);
  options.keeps_cached_blocks = plan.keeps_cached_blocks;
  options.stale_weights_timeout = absl::InfiniteDuration();
  options.vocab_size = site->model.vocab_size;
  return options;
}

}  // namespace somnus::simulation
