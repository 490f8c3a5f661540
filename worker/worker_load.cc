#include "worker/worker_load.h"

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
#include "base/status_message.h"
#include "proto/options_digest.h"
#include "worker/lifecycle.h"
#include "worker/weights_record.h"

namespace somnus {
namespace {

// A worker of a group may be asked for memory alone. The worker is like the other ranks once the weights have
// come, so its digest is theirs.
std::string DigestOf(v1::LoadModelRequest request) {
  if (request.load_format() == v1::LOAD_FORMAT_NONE) request.set_load_format(v1::LOAD_FORMAT_AUTO);
  return OptionsDigest(request);
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

absl::Status WorkerLoad::Begin(const v1::LoadModelRequest& request) {
  if (request.load_format() != v1::LOAD_FORMAT_NONE)
    RETURN_IF_ERROR(CheckWeightsVersion(request.weights_version()));
  RETURN_IF_ERROR(CheckAsleep(request));
  ASSIGN_OR_RETURN(options_, MakeLoadOptions(request, worker_));
  request_ = request;
  options_.runner.read_weights = has_source() && !weights_sleep();
  return absl::OkStatus();
}

bool WorkerLoad::weights_sleep() const {
  const auto& tags = request_.asleep_tags();
  return std::find(tags.begin(), tags.end(), kWeightsTag) != tags.end();
}

// Chooses the worker's CPUs and the NUMA nodes of its memory, and moves the process there.
absl::Status WorkerLoad::Place() {
  PlacementRequest request = options_.placement;
  if (request.device == DeviceKind::kCuda && parts_.gpu_node)
    request.gpu_node = parts_.gpu_node(worker_.device_index);
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

absl::Status WorkerLoad::OpenDevice() {
  RETURN_IF_ERROR(Place());
  WorkerOptions worker = worker_;
  worker.device = options_.device;
  worker.device_chunk_bytes = options_.device_chunk_bytes;
  worker.memory_nodes = placement_.memory_nodes;
  CpuDeviceOptions options;
  options.num_threads = placement_.num_threads;
  options.first_cpu = placement_.first_cpu;
  options.thread_speeds = placement_.thread_speeds;
  options.spin = placement_.spins;
  ASSIGN_OR_RETURN(device_, parts_.open_device(worker, options));
  device_->SetBatchInvariant(request_.batch_invariant());
  LogInfo("runs on {}; NUMA: {}", device_->Describe(), placement_.description);
  ASSIGN_OR_RETURN(driver_, parts_.open_memory(worker, placement_.memory_threads));
  if (!options_.spill_dir.empty()) {
    const absl::Status spill = CheckSpillDir(options_.spill_dir);
    if (!spill.ok()) return WithMessage(spill, absl::StrCat("--spill-dir: ", spill.message()));
  }
  std::shared_ptr<SleepableAllocator> allocator = SleepableAllocator::Create(
      driver_.get(),
      {.backup = options_.backup, .spill_dir = options_.spill_dir, .open_spill_io = parts_.open_spill_io});
  allocator->BeginAsleep({request_.asleep_tags().begin(), request_.asleep_tags().end()});
  absl::MutexLock lock(&mu_);
  allocator_ = std::move(allocator);
  return absl::OkStatus();
}

absl::StatusOr<v1::LoadModelEvent> WorkerLoad::LoadRunner(const Checkpoint& checkpoint,
                                                          EpochCommunicator* communicator,
                                                          const ModelRunner::Progress& progress) {
  const v1::ParallelConfig& parallel = request_.parallel();
  const int stage_ranks = RanksOfStage(parallel);
  communicator->SetShape(parallel.rank() % stage_ranks, stage_ranks, device_->kind() == DeviceKind::kCuda);
  communicator->SetNumber(parallel.rank());
  ASSIGN_OR_RETURN(runner_, parts_.load_runner(checkpoint, options_.runner, device_.get(), communicator,
                                               allocator_.get(), progress));
  v1::LoadModelEvent event;
  event.set_done(true);
  const TagStats weights = allocator_->Stats()[kWeightsTag];
  event.set_weights_bytes(weights.resident + weights.sleeping);
  event.set_bytes_loaded(options_.runner.read_weights ? event.weights_bytes() : 0);
  event.set_bytes_total(event.bytes_loaded());
  event.set_kv_block_bytes(runner_->kv_block_bytes());
  absl::MutexLock lock(&mu_);
  loaded_ = {.rank = parallel.rank(),
             .world_size = parallel.world_size(),
             .options_digest = DigestOf(request_),
             .weights_bytes = event.weights_bytes(),
             .weight_types = runner_->weight_types(),
             .numa = placement_.description,
             .kv_block_bytes = event.kv_block_bytes()};
  return event;
}

absl::StatusOr<std::unique_ptr<Communicator>> WorkerLoad::MakeGroup(const v1::ParallelConfig& parallel,
                                                                    GroupPorts ports,
                                                                    std::function<bool()> cancelled) const {
  GroupOptions options;
  options.cancelled = std::move(cancelled);
  options.spin = placement_.spins;
  options.batch_invariant = request_.batch_invariant();
  JoinDevices join;
  if (device_->kind() == DeviceKind::kCuda) {
    join.stage = [this](const GroupOptions& stage) { return parts_.join_devices(stage, device_.get()); };
    if (parts_.join_device_link) {
      join.link = [this](const GroupOptions& link, std::unique_ptr<StageLink> host) {
        return parts_.join_device_link(link, MemoryPool(), device_.get(), std::move(host));
      };
    }
  }
  return JoinRanks(parallel, options, std::move(ports), join);
}

std::string WorkerLoad::MemoryPool() const {
  return parts_.memory_pool ? parts_.memory_pool(device_->kind(), worker_.device_index) : "";
}

std::shared_ptr<SleepableAllocator> WorkerLoad::SharedAllocator() const {
  absl::MutexLock lock(&mu_);
  return allocator_;
}

void WorkerLoad::FillSnapshot(v1::WorkerSnapshot* snapshot) const {
  // The request is written before that state begins, and not afterwards.
  if (snapshot->state() == WorkerStateName(WorkerState::kLoaded) && !request_.asleep_tags().empty())
    snapshot->set_sleep_level(request_.sleep_level());
  {
    absl::MutexLock lock(&mu_);
    snapshot->set_rank(loaded_.rank);
    snapshot->set_world_size(loaded_.world_size);
    snapshot->set_options_digest(loaded_.options_digest);
    snapshot->set_weights_bytes(loaded_.weights_bytes);
    snapshot->set_kv_block_bytes(loaded_.kv_block_bytes);
  }
  const std::shared_ptr<SleepableAllocator> allocator = SharedAllocator();
  if (allocator == nullptr) return;
  for (const auto& [tag, stats] : allocator->Stats()) {
    if (stats.sleeping == 0) snapshot->add_resident_tags(tag);
  }
}

absl::Status WorkerLoad::SetAdapters(absl::Span<const v1::WorkerAdapter> adapters) {
  const absl::Status set = runner_->SetAdapters(adapters);
  adapter_bytes_ = runner_->adapter_host_bytes();
  return set;
}

void WorkerLoad::AddReadAdapters(std::vector<std::shared_ptr<const HostAdapter>> adapters) {
  runner_->AddReadAdapters(std::move(adapters));
  adapter_bytes_ = runner_->adapter_host_bytes();
}

int64_t WorkerLoad::HostBytes(absl::string_view tag) const {
  return tag == kWorkspaceTag ? adapter_bytes_.load() : 0;
}

bool WorkerLoad::FillStatus(v1::WorkerStatusResponse* status) const {
  {
    absl::MutexLock lock(&mu_);
    status->set_weight_types(loaded_.weight_types);
    status->set_numa(loaded_.numa);
  }
  const std::shared_ptr<SleepableAllocator> allocator = SharedAllocator();
  if (allocator == nullptr) return false;
  for (const auto& [tag, bytes] : allocator->Stats()) {
    (*status->mutable_bytes_by_tag())[tag] = bytes.resident;
    (*status->mutable_sleeping_bytes_by_tag())[tag] = bytes.sleeping;
    (*status->mutable_host_bytes_by_tag())[tag] = bytes.host_backup + HostBytes(tag);
    (*status->mutable_file_bytes_by_tag())[tag] = bytes.file_backup;
  }
  return true;
}

}  // namespace somnus
