// The Worker's loading: its device, its weights, and the memory of its KV cache.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/spill_store.h"
#include "base/cpu_topology.h"
#include "base/cpus.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/numa.h"
#include "base/request_bounds.h"
#include "base/status_macros.h"
#include "proto/limits.h"
#include "proto/options_digest.h"
#include "worker/kv_memory.h"
#include "worker/worker.h"

namespace somnus {
namespace {

// Of a group's workers one may be asked for memory alone. It is like the others once it has the weights.
std::string DigestOf(v1::LoadModelRequest request) {
  if (request.load_format() == v1::LOAD_FORMAT_NONE) request.set_load_format(v1::LOAD_FORMAT_AUTO);
  return OptionsDigest(request);
}

bool Sleeps(const v1::LoadModelRequest& request, const std::string& tag) {
  const auto& tags = request.asleep_tags();
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

absl::Status CheckAsleep(const v1::LoadModelRequest& request) {
  for (const std::string& tag : request.asleep_tags()) {
    if (!IsMemoryTag(tag))
      return absl::InvalidArgumentError(absl::StrCat("asleep_tags: there is no '", tag, "'"));
  }
  const int level = request.sleep_level();
  const bool is_level = level >= kMinSleepLevel && level <= kMaxSleepLevel;
  if (request.asleep_tags().empty() || is_level) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("sleep_level: must be ", kSleepLevelNames, ", not ", level));
}

}  // namespace

absl::StatusOr<v1::LoadModelEvent> Worker::DoLoad(const v1::LoadModelRequest& request,
                                                  const ModelRunner::Progress& progress) {
  const bool has_source = request.load_format() != v1::LOAD_FORMAT_NONE;
  if (has_source) RETURN_IF_ERROR(CheckWeightsVersion(request.weights_version()));
  RETURN_IF_ERROR(CheckAsleep(request));
  const bool weights_sleep = Sleeps(request, kWeightsTag);
  ASSIGN_OR_RETURN(load_options_, MakeLoadOptions(request, options_));
  load_request_ = request;
  load_options_.runner.read_weights = has_source && !weights_sleep;
  load_format_ = request.load_format() == v1::LOAD_FORMAT_DUMMY ? LoadFormat::kDummy : LoadFormat::kAuto;
  ASSIGN_OR_RETURN(const Files files,
                   has_source ? OpenFiles(request.model_path()) : OpenFilesForLayout(request.model_path()));
  RETURN_IF_ERROR(OpenDevice(request.batch_invariant()));
  allocator_->BeginAsleep({request.asleep_tags().begin(), request.asleep_tags().end()});
  const v1::ParallelConfig& parallel = request.parallel();
  communicator_.SetShape(parallel.rank(), parallel.world_size(), device_->kind() == DeviceKind::kCuda);
  ASSIGN_OR_RETURN(runner_, parts_.load_runner(*files.checkpoint, load_options_.runner, device_.get(),
                                               &communicator_, allocator_.get(), progress));
  v1::LoadModelEvent event;
  event.set_done(true);
  const TagStats weights = allocator_->Stats()[kWeightsTag];
  event.set_weights_bytes(weights.resident + weights.sleeping);
  event.set_bytes_loaded(load_options_.runner.read_weights ? event.weights_bytes() : 0);
  event.set_bytes_total(event.bytes_loaded());
  event.set_kv_block_bytes(runner_->kv_block_bytes());
  if (has_source) {
    SetRead(request.weights_version(), files.source);
  } else {
    weights_.SetOverwritten();
  }
  if (weights_sleep) FallAsleepUnread(has_source);
  event.set_weights_version(weights_.version());
  event.set_checkpoint_fingerprint(weights_.fingerprint());
  absl::MutexLock lock(&mu_);
  loaded_.rank = parallel.rank();
  loaded_.world_size = parallel.world_size();
  loaded_.options_digest = DigestOf(request);
  loaded_.weights_bytes = event.weights_bytes();
  loaded_.weight_types = runner_->weight_types();
  loaded_.numa = placement_.description;
  loaded_.kv_block_bytes = event.kv_block_bytes();
  return event;
}

void Worker::FallAsleepUnread(bool has_source) {
  if (has_source && load_request_.sleep_level() < kMaxSleepLevel) {
    checkpoint_backup_.Begin(allocator_->Stats()[kWeightsTag].sleeping);
  } else {
    weights_.SetDiscarded();
  }
}

absl::Status Worker::Place() {
  PlacementRequest request = load_options_.placement;
  if (request.device == DeviceKind::kCuda && parts_.gpu_node)
    request.gpu_node = parts_.gpu_node(options_.device_index);
  HostCpus host = {{}, AllowedCpus(), NumAllowedCpus(), {}};
  if (parts_.cpu_topology) {
    const CpuTopology topology = parts_.cpu_topology();
    host.siblings = SiblingCpus(topology, host.allowed);
    host.speeds = topology.speeds;
  }
  if (parts_.numa_nodes) host.nodes = parts_.numa_nodes();
  ASSIGN_OR_RETURN(placement_, ChoosePlacement(request, host));
  if (!placement_.cpus.empty() && !RestrictToCpus(placement_.cpus))
    LogWarning("NUMA: not every thread could be moved to CPUs {}", CpuListText(placement_.cpus));
  if (const absl::Status status = CheckPlacePages(placement_.memory_nodes); !status.ok()) {
    LogWarning("NUMA: memory is not placed: {}", std::string(status.message()));
    absl::StrAppend(&placement_.description, ", memory not placed");
    placement_.memory_nodes.clear();
  }
  return absl::OkStatus();
}

absl::Status Worker::OpenDevice(bool batch_invariant) {
  RETURN_IF_ERROR(Place());
  WorkerOptions worker = options_;
  worker.device = load_options_.device;
  worker.device_chunk_bytes = load_options_.device_chunk_bytes;
  worker.memory_nodes = placement_.memory_nodes;
  CpuDeviceOptions options;
  options.num_threads = placement_.num_threads;
  options.first_cpu = placement_.first_cpu;
  options.thread_speeds = placement_.thread_speeds;
  options.spin = placement_.spins;
  ASSIGN_OR_RETURN(device_, parts_.open_device(worker, options));
  device_->SetBatchInvariant(batch_invariant);
  LogInfo("runs on {}; NUMA: {}", device_->Describe(), placement_.description);
  ASSIGN_OR_RETURN(driver_, parts_.open_memory(worker, placement_.memory_threads));
  if (!load_options_.spill_dir.empty()) RETURN_IF_ERROR(CheckSpillDir(load_options_.spill_dir));
  std::shared_ptr<SleepableAllocator> allocator =
      SleepableAllocator::Create(driver_.get(), {.backup = load_options_.backup,
                                                 .spill_dir = load_options_.spill_dir,
                                                 .open_spill_io = parts_.open_spill_io});
  absl::MutexLock lock(&mu_);
  allocator_ = std::move(allocator);
  return absl::OkStatus();
}

absl::StatusOr<v1::ProfileResponse> Worker::DoProfile() {
  RETURN_IF_ERROR(lifecycle_.Require({WorkerState::kLoaded}, "Profile"));
  RETURN_IF_ERROR(RequireGroup("Profile"));
  const absl::StatusOr<KvMemory> memory =
      MeasureKvMemory(load_options_, runner_.get(), &communicator_, driver_.get());
  if (!memory.ok()) return Fail(epoch_, memory.status());
  graph_bytes_ = memory->graph_bytes;
  v1::ProfileResponse response;
  response.set_available_kv_cache_memory_bytes(memory->available_bytes);
  response.set_graph_bytes(memory->graph_bytes);
  response.set_graph_capture_us(static_cast<int64_t>(memory->graph_seconds * 1e6));
  response.set_weights_version(weights_version());
  return response;
}

absl::StatusOr<int64_t> Worker::DoAllocateKvCache(const v1::KvCacheConfig& config, bool defer_graphs) {
  RETURN_IF_ERROR(lifecycle_.Require({WorkerState::kLoaded}, "AllocateKvCache"));
  if (!defer_graphs) RETURN_IF_ERROR(RequireGroup("AllocateKvCache"));
  if (config.num_blocks() < 2) {
    return absl::InvalidArgumentError(absl::StrCat("num_blocks: ", config.num_blocks(), " is less than 2"));
  }
  if (config.block_size() != load_request_.block_size() || config.dtype() != load_request_.kv_cache_dtype()) {
    return absl::InvalidArgumentError("kv_cache: block_size and kv_cache_dtype must be those of LoadModel");
  }
  if (config.num_host_blocks() < 0 || config.num_host_blocks() > kMaxKeptBlocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_host_blocks: ", config.num_host_blocks(), " is not from 0 to ", kMaxKeptBlocks));
  }
  if (config.swap_space_ahead_bytes() < 0)
    return absl::InvalidArgumentError("swap_space_ahead_bytes: must not be negative");
  const int32_t mapped = config.num_mapped_blocks() > 0 ? config.num_mapped_blocks() : config.num_blocks();
  if (mapped < 2 || mapped > config.num_blocks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_mapped_blocks: ", mapped, " is not from 2 to ", config.num_blocks()));
  }
  RETURN_IF_ERROR(runner_->AllocateKvCache(config.num_blocks(), mapped, defer_graphs));
  kv_host_tier_ = std::make_unique<KvHostTier>(
      KvHostTierOptions{.block_bytes = runner_->kv_block_bytes(),
                        .num_blocks = config.num_host_blocks(),
                        .retains_memory = load_options_.backup == BackupPolicy::kRetain,
                        .ahead_bytes = std::min(config.swap_space_ahead_bytes(),
                                                runner_->kv_block_bytes() * config.num_blocks()),
                        .ready_bytes = &kv_ready_bytes_,
                        .meter = transition_meter_.bytes()},
      device_.get(), driver_.get(), runner_.get());
  ranks_may_differ_ |= defer_graphs;
  allocator_->BeginAsleep({});
  SetRestingState();
  absl::MutexLock lock(&mu_);
  loaded_.num_blocks = config.num_blocks();
  loaded_.num_mapped_blocks = mapped;
  loaded_.num_host_blocks = config.num_host_blocks();
  return runner_->kv_block_bytes() * mapped;
}

absl::StatusOr<v1::ResizeKvCacheResponse> Worker::DoResizeKvCache(int32_t num_blocks) {
  RETURN_IF_ERROR(lifecycle_.Require({WorkerState::kAwake, WorkerState::kAsleep}, "ResizeKvCache"));
  if (prepared_.has_value()) return absl::FailedPreconditionError("ResizeKvCache: a transition is prepared");
  RETURN_IF_ERROR(runner_->ResizeKvCache(num_blocks));
  if (num_blocks < kv_host_tier_->end_of_held()) ForgetKept(/*with_swapped=*/false);
  v1::ResizeKvCacheResponse response;
  response.set_weights_version(weights_version());
  response.set_kv_cache_bytes(allocator_->ResidentBytes()[kKvCacheTag]);
  absl::MutexLock lock(&mu_);
  loaded_.num_mapped_blocks = num_blocks;
  return response;
}

}  // namespace somnus
