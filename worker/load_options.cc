#include "worker/load_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "allocator/piece_codec.h"
#include "base/numa.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/lora_adapter.h"
#include "proto/limits.h"

namespace somnus {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxGroupsOnHost = 1024;
constexpr int32_t kMaxGraphSize = 4096;

absl::StatusOr<DataType> ToDataType(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_FLOAT32:
      return DataType::kF32;
    case v1::DTYPE_BFLOAT16:
      return DataType::kBF16;
    case v1::DTYPE_FLOAT16:
      return DataType::kF16;
    default:
      return absl::InvalidArgumentError("dtype: the coordinator must resolve it");
  }
}

absl::StatusOr<DataType> ToCacheDataType(v1::DType dtype) {
  if (dtype == v1::DTYPE_FLOAT8_E4M3) return DataType::kF8E4M3;
  if (dtype == v1::DTYPE_INT8) return DataType::kI8;
  absl::StatusOr<DataType> type = ToDataType(dtype);
  if (!type.ok()) return absl::InvalidArgumentError("kv_cache_dtype: the coordinator must resolve it");
  return type;
}

// The type that weights get; for int4 the blocks with a minimum, which are never less exact.
absl::StatusOr<std::optional<DataType>> ToQuantizedType(v1::WeightQuantization quantization) {
  switch (quantization) {
    case v1::WEIGHT_QUANTIZATION_NONE:
      return std::optional<DataType>();
    case v1::WEIGHT_QUANTIZATION_INT8:
      return DataType::kQ8_0;
    case v1::WEIGHT_QUANTIZATION_INT4:
      return DataType::kQ4_1;
    case v1::WEIGHT_QUANTIZATION_FP8:
      return DataType::kF8E4M3;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("quantization: ", static_cast<int>(quantization), " is none that is known here"));
  }
}

absl::Status CheckParallel(const v1::ParallelConfig& parallel) {
  if (parallel.world_size() < 1 || parallel.rank() < 0 || parallel.rank() >= parallel.world_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel: rank ", parallel.rank(), " of ", parallel.world_size()));
  }
  if (parallel.num_stages() < 0 || parallel.num_stages() > parallel.world_size() ||
      parallel.world_size() % std::max(1, parallel.num_stages()) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("num_stages: ", parallel.world_size(), " ranks are not ",
                                                   parallel.num_stages(), " stages of the same size"));
  }
  if (parallel.rank_hosts_size() != 0 && parallel.rank_hosts_size() != parallel.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat("rank_hosts: ", parallel.rank_hosts_size(), " hosts of ",
                                                   parallel.world_size(), " ranks"));
  }
  if (parallel.rank_cpus_size() != 0 && parallel.rank_cpus_size() != parallel.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat("rank_cpus: ", parallel.rank_cpus_size(), " lists of ",
                                                   parallel.world_size(), " ranks"));
  }
  return absl::OkStatus();
}

// Without a list of hosts all ranks are taken to share one.
bool ShareHost(const v1::ParallelConfig& parallel, int a, int b) {
  return parallel.rank_hosts_size() == 0 || parallel.rank_hosts(a) == parallel.rank_hosts(b);
}

// On one host. Ranks of which it is not known are taken to share them.
bool ShareCpus(const v1::ParallelConfig& parallel, int a, int b) {
  if (parallel.rank_cpus_size() == 0) return true;
  const auto first = ParseCpuList(parallel.rank_cpus(a)), second = ParseCpuList(parallel.rank_cpus(b));
  if (!first.has_value() || first->empty() || !second.has_value() || second->empty()) return true;
  return std::any_of(first->begin(), first->end(), [&second](int cpu) {
    return std::find(second->begin(), second->end(), cpu) != second->end();
  });
}

int RanksOnHost(const v1::ParallelConfig& parallel) {
  int ranks = 0;
  for (int rank = 0; rank < parallel.world_size(); ++rank)
    ranks += ShareHost(parallel, parallel.rank(), rank) ? 1 : 0;
  return ranks;
}

// Other groups of the host count as if each had a rank beside each of this one; the ranks of a host's first
// group come first. `options`: with its ranks_on_host.
void CountRanks(const v1::LoadModelRequest& request, const LoadOptions& options,
                PlacementRequest* placement) {
  const v1::ParallelConfig& parallel = request.parallel();
  int sharing = 0, before = 0;
  for (int rank = 0; rank < parallel.world_size(); ++rank) {
    if (!ShareHost(parallel, parallel.rank(), rank) || !ShareCpus(parallel, parallel.rank(), rank)) continue;
    ++sharing;
    before += rank < parallel.rank() ? 1 : 0;
  }
  placement->ranks_on_host = sharing * std::max(1, request.groups_on_host());
  placement->index_on_host = request.group_on_host() * sharing + before;
  placement->other_ranks = options.ranks_on_host - placement->ranks_on_host;
}

// On a host a backup takes the memory that the weights had: kept after the wake-up it would count twice.
BackupPolicy ToBackupPolicy(const v1::LoadModelRequest& request, DeviceKind device) {
  switch (request.backup()) {
    case v1::BACKUP_POLICY_RETAIN:
      return BackupPolicy::kRetain;
    case v1::BACKUP_POLICY_RELEASE:
      return BackupPolicy::kRelease;
    case v1::BACKUP_POLICY_FILE:
      return request.spill_dir().empty() ? BackupPolicy::kRelease : BackupPolicy::kFile;
    case v1::BACKUP_POLICY_COMPRESS:
      return BackupPolicy::kCompress;
    default:
      return device == DeviceKind::kCpu ? BackupPolicy::kRelease : BackupPolicy::kRetain;
  }
}

const char* Name(DeviceKind device) { return device == DeviceKind::kCuda ? "cuda" : "cpu"; }

absl::StatusOr<DeviceKind> ResolveDevice(v1::DeviceType asked, const WorkerOptions& worker) {
  if (asked == v1::DEVICE_TYPE_UNSPECIFIED) return worker.device;
  const DeviceKind wanted = asked == v1::DEVICE_TYPE_CUDA ? DeviceKind::kCuda : DeviceKind::kCpu;
  if (wanted == worker.device) return wanted;
  if (worker.device_is_fixed) {
    return absl::FailedPreconditionError(
        absl::StrCat("device: the coordinator's --device is ", Name(wanted),
                     ", this worker was started with --device=", Name(worker.device)));
  }
  if (wanted == DeviceKind::kCuda) {
    return absl::FailedPreconditionError(
        "device: the coordinator's --device is cuda, this worker has no GPU");
  }
  return wanted;
}

absl::Status CheckRunOptions(const v1::LoadModelRequest& request) {
  if (request.num_threads() < 0 || request.num_threads() > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_threads: ", request.num_threads(), " is not from 0 to ", kMaxThreads));
  }
  const double utilization = request.memory_utilization();
  if (!(utilization >= 0 && utilization <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory_utilization: ", utilization, " is not from 0 to 1"));
  }
  for (const int32_t size : request.graph_sizes()) {
    if (size >= 1 && size <= kMaxGraphSize) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("graph_sizes: ", size, " is not from 1 to ", kMaxGraphSize));
  }
  if (request.device_chunk_bytes() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("device_chunk_bytes: ", request.device_chunk_bytes(), " is negative"));
  }
  if (request.groups_on_host() < 0 || request.groups_on_host() > kMaxGroupsOnHost) {
    return absl::InvalidArgumentError(
        absl::StrCat("groups_on_host: ", request.groups_on_host(), " is not from 0 to ", kMaxGroupsOnHost));
  }
  if (request.group_on_host() < 0 || request.group_on_host() >= std::max(1, request.groups_on_host())) {
    return absl::InvalidArgumentError(absl::StrCat("group_on_host: ", request.group_on_host(),
                                                   " is not below groups_on_host, ",
                                                   request.groups_on_host()));
  }
  if (!request.spill_dir().empty() && request.backup() != v1::BACKUP_POLICY_FILE)
    return absl::InvalidArgumentError("spill_dir: is for BACKUP_POLICY_FILE");
  if (request.backup() == v1::BACKUP_POLICY_COMPRESS) {
    if (const absl::Status status = CheckCompression(); !status.ok())
      return absl::InvalidArgumentError(absl::StrCat("backup: ", status.message()));
  }
  if (request.max_tune_time_us() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tune_time_us: ", request.max_tune_time_us(), " is negative"));
  }
  return absl::OkStatus();
}

absl::Status CheckDraftModel(const v1::LoadModelRequest& request) {
  const int32_t most = request.draft_model_path().empty() ? 0 : kMaxSpeculativeTokens;
  const int32_t least = std::min(1, most);
  if (request.num_speculative_tokens() >= least && request.num_speculative_tokens() <= most)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("num_speculative_tokens: ", request.num_speculative_tokens(),
                                                 " is not from ", least, " to ", most));
}

absl::Status CheckAdapters(const v1::LoadModelRequest& request) {
  if (request.max_adapters() < 0 || request.max_adapters() > kMaxAdapters) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_adapters: ", request.max_adapters(), " is not from 0 to ", kMaxAdapters));
  }
  if (request.max_adapters() == 0) return absl::OkStatus();
  if (request.max_loras() < 1 || request.max_loras() > request.max_adapters()) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_loras: ", request.max_loras(), " is not from 1 to ", request.max_adapters()));
  }
  if (request.max_lora_rank() >= 1 && request.max_lora_rank() <= LoraAdapter::kMaxRank)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("max_lora_rank: ", request.max_lora_rank(), " is not from 1 to ", LoraAdapter::kMaxRank));
}

// `options`: with its device and ranks_on_host.
absl::StatusOr<PlacementRequest> MakePlacementRequest(const v1::LoadModelRequest& request,
                                                      const WorkerOptions& worker,
                                                      const LoadOptions& options) {
  PlacementRequest placement;
  const std::string& numa = worker.numa.empty() ? request.numa() : worker.numa;
  const absl::StatusOr<NumaOption> option = ParseNumaOption(numa);
  if (!option.ok())
    return absl::InvalidArgumentError(absl::StrCat("numa: '", numa, "' ", option.status().message()));
  placement.numa = *option;
  placement.device = options.device;
  CountRanks(request, options, &placement);
  placement.num_threads = worker.num_threads > 0 ? worker.num_threads : request.num_threads();
  placement.pins = worker.pins;
  placement.first_cpu = worker.first_cpu;
  return placement;
}

}  // namespace

PipelinePlace PlaceInPipeline(const v1::ParallelConfig& parallel) {
  PipelinePlace place;
  place.num_stages = std::max(1, parallel.num_stages());
  place.stage = parallel.rank() / RanksOfStage(parallel);
  place.stage_layers.assign(parallel.stage_layers().begin(), parallel.stage_layers().end());
  return place;
}

double DefaultMemoryUtilization(DeviceKind device) { return device == DeviceKind::kCpu ? 0.5 : 0.9; }

absl::StatusOr<LoadOptions> MakeLoadOptions(const v1::LoadModelRequest& request,
                                            const WorkerOptions& worker) {
  RETURN_IF_ERROR(CheckParallel(request.parallel()));
  RETURN_IF_ERROR(CheckRunOptions(request));
  RETURN_IF_ERROR(CheckDraftModel(request));
  RETURN_IF_ERROR(CheckAdapters(request));
  LoadOptions options;
  ASSIGN_OR_RETURN(options.device, ResolveDevice(request.device(), worker));
  options.device_chunk_bytes =
      request.device_chunk_bytes() > 0 ? request.device_chunk_bytes() : worker.device_chunk_bytes;
  options.backup = ToBackupPolicy(request, options.device);
  options.spill_dir = request.spill_dir();
  options.checkpoint_is_backup = request.backup() == v1::BACKUP_POLICY_FILE && request.spill_dir().empty();
  options.ranks_on_host = RanksOnHost(request.parallel()) * std::max(1, request.groups_on_host());
  ASSIGN_OR_RETURN(options.placement, MakePlacementRequest(request, worker, options));
  options.memory_utilization = request.memory_utilization() > 0 ? request.memory_utilization()
                                                                : DefaultMemoryUtilization(options.device);
  ModelRunnerOptions& runner = options.runner;
  ASSIGN_OR_RETURN(runner.dtype, ToDataType(request.dtype()));
  ASSIGN_OR_RETURN(runner.kv_cache_dtype, ToCacheDataType(request.kv_cache_dtype()));
  runner.dequantize = request.dequantize();
  ASSIGN_OR_RETURN(runner.quantize, ToQuantizedType(request.quantization()));
  runner.expert_parallel = request.expert_parallel();
  runner.expert_load = request.expert_load();
  runner.max_num_seqs = request.max_num_seqs();
  runner.max_num_batched_tokens = request.max_num_batched_tokens();
  runner.max_model_len = request.max_model_len();
  runner.block_size = request.block_size();
  runner.enforce_eager = request.enforce_eager();
  runner.graph_sizes.assign(request.graph_sizes().begin(), request.graph_sizes().end());
  runner.max_tune_time = absl::Microseconds(request.max_tune_time_us());
  runner.draft_model_path = request.draft_model_path();
  runner.pipeline = PlaceInPipeline(request.parallel());
  runner.num_speculative_tokens = request.num_speculative_tokens();
  runner.max_adapters = request.max_adapters();
  if (request.max_adapters() > 0) {
    runner.max_loras = request.max_loras();
    runner.max_lora_rank = request.max_lora_rank();
  }
  if (request.load_format() == v1::LOAD_FORMAT_DUMMY) runner.draft_format = LoadFormat::kDummy;
  return options;
}

}  // namespace somnus
