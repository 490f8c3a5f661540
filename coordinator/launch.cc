#include "coordinator/launch.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/cpus.h"
#include "base/log.h"
#include "base/null_block.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "coordinator/kv_cache_dtype.h"
#include "coordinator/progress.h"

namespace somnus {
namespace {

const char* DeviceName(v1::DeviceType device) { return device == v1::DEVICE_TYPE_CUDA ? "cuda" : "cpu"; }

std::string FormatMib(int64_t bytes) { return absl::StrFormat("%.1f MiB", bytes / 1048576.0); }

std::string RandomHex(size_t bytes) {
  std::string raw(bytes, '\0');
  size_t got = 0;
  while (got < bytes) {
    const ssize_t n = getrandom(raw.data() + got, bytes - got, 0);
    SOMNUS_CHECK(n > 0 || errno == EINTR);  // Linux's getrandom has no other error for memory of our own
    if (n > 0) got += static_cast<size_t>(n);
  }
  return absl::BytesToHexString(raw);
}

// A local worker's command line says what it needs to become a member; how it runs the model comes with
// LoadModel.
std::vector<std::string> WorkerCommand(const Flags& flags, const std::string& binary,
                                       const std::string& coordinator, int rank) {
  std::vector<std::string> command = {binary, absl::StrCat("--coordinator=", coordinator),
                                      absl::StrCat("--rank=", rank),
                                      absl::StrCat("--log-level=", flags.log_level)};
  if (flags.device != v1::DEVICE_TYPE_UNSPECIFIED) {
    command.push_back(absl::StrCat("--device=", DeviceName(flags.device)));
  }
  const bool chosen = rank < static_cast<int>(flags.device_indices.size());
  command.push_back(absl::StrCat("--device-index=", chosen ? flags.device_indices[rank] : rank));
  // Threads are pinned only where each has a CPU of its own.
  const int cpus = NumAllowedCpus();
  const int threads =
      flags.threads_per_worker > 0 ? flags.threads_per_worker : std::max(1, cpus / flags.world_size);
  if (threads * flags.world_size <= cpus) command.push_back(absl::StrCat("--first-cpu=", rank * threads));
  return command;
}

// Fills in the run options of Flags and what depends on the model.
v1::LoadModelRequest MakeLoadRequest(const Flags& flags, const ModelConfig& config, int32_t max_model_len) {
  v1::LoadModelRequest request;
  request.set_model_path(flags.model);
  request.set_load_format(flags.load_format);
  request.set_dtype(ResolveDType(flags.dtype, config.stored_type));
  request.set_kv_cache_dtype(ResolveKvCacheDType(flags.kv_cache_dtype, request.dtype()));
  request.mutable_parallel()->set_group_name(absl::StrCat("somnus-", getpid(), "-", RandomHex(6)));
  request.set_max_num_seqs(flags.max_num_seqs);
  request.set_max_num_batched_tokens(flags.max_num_batched_tokens);
  request.set_max_model_len(max_model_len);
  request.set_block_size(flags.block_size);
  request.set_batch_invariant(flags.batch_invariant);
  request.set_device(flags.device);
  request.set_num_threads(flags.threads_per_worker);
  request.set_memory_utilization(flags.memory_utilization);
  request.set_enforce_eager(flags.enforce_eager);
  request.mutable_graph_sizes()->Add(flags.graph_sizes.begin(), flags.graph_sizes.end());
  request.set_device_chunk_bytes(flags.device_chunk_bytes);
  request.set_max_tune_time_us(absl::ToInt64Microseconds(flags.max_tune_time));
  return request;
}

absl::StatusOr<KvPlan> PlanBlocks(const Flags& flags, const std::vector<v1::RegisterRequest>& members,
                                  const std::vector<LoadedRank>& ranks, int32_t max_model_len) {
  KvPlanRequest request;
  request.block_size = flags.block_size;
  request.max_num_seqs = flags.max_num_seqs;
  request.max_model_len = max_model_len;
  request.max_model_len_is_fixed = flags.max_model_len > 0;
  request.kv_cache_memory_bytes = flags.kv_cache_memory_bytes;
  std::vector<RankMemory> memory;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    memory.push_back({ranks[rank].kv_block_bytes, ranks[rank].available_kv_cache_memory_bytes,
                      members[rank].device_type() == v1::DEVICE_TYPE_CPU});
  }
  ASSIGN_OR_RETURN(const KvPlan plan, PlanKvCache(memory, request));
  if (plan.max_model_len < max_model_len) {
    LogWarning("max_model_len is {}, not {}: the KV cache holds no more", plan.max_model_len, max_model_len);
  }
  return plan;
}

void LogRank(int rank, const v1::RegisterRequest& member, const LoadedRank& loaded) {
  LogInfo("rank {}: {}, pid {}, {}:{} with {}; weights {}, decode graphs {} in {}", rank, member.host(),
          member.pid(), DeviceName(member.device_type()), member.device_index(),
          FormatMib(member.device_memory_bytes()), FormatMib(loaded.weights_bytes),
          FormatMib(loaded.graph_bytes), absl::FormatDuration(loaded.graph_capture_time));
}

}  // namespace

v1::DType ResolveDType(v1::DType requested, StorageType stored) {
  if (requested != v1::DTYPE_UNSPECIFIED) return requested;
  return stored == StorageType::kF32 ? v1::DTYPE_FLOAT32 : v1::DTYPE_BFLOAT16;
}

absl::StatusOr<std::string> WorkerGroup::FindBinary(const Flags& flags) const {
  std::error_code error;
  std::filesystem::path path = flags.worker_binary;
  if (path.empty()) {
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
    path = self.parent_path().parent_path() / "worker" / "worker";
  }
  if (access(path.c_str(), X_OK) == 0) return path.string();
  return absl::NotFoundError(absl::StrCat("--worker-binary: ", path.string(), " cannot be executed"));
}

absl::Status WorkerGroup::Start(const Flags& flags) {
  std::string binary;
  if (flags.local_workers) {
    ASSIGN_OR_RETURN(binary, FindBinary(flags));
    spawn_token_ = RandomHex(16);
  }
  ClusterServerOptions options;
  if (!flags.local_workers) options.address = absl::StrCat(flags.cluster_host, ":", flags.cluster_port);
  options.membership.world_size = flags.world_size;
  options.membership.version = kVersion;
  options.membership.spawn_token = spawn_token_;
  options.membership.heartbeat_timeout = flags.heartbeat_timeout;
  options.membership.confirm_members = !flags.local_workers;
  options.membership.stall_threshold = flags.step_stall;
  ASSIGN_OR_RETURN(std::unique_ptr<ClusterServer> cluster, ClusterServer::Start(options));
  {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(loss_);
    cluster_ = std::move(cluster);
  }
  if (!flags.local_workers) {
    LogInfo("waiting for {} workers: worker --coordinator={}", flags.world_size, cluster_->address());
    return absl::OkStatus();
  }
  std::vector<std::vector<std::string>> commands;
  for (int rank = 0; rank < flags.world_size; ++rank) {
    commands.push_back(WorkerCommand(flags, binary, cluster_->address(), rank));
  }
  ASSIGN_OR_RETURN(processes_,
                   WorkerProcesses::Spawn(commands, {absl::StrCat("SOMNUS_SPAWN_TOKEN=", spawn_token_)},
                                          [this](int, const absl::Status& status) { OnLoss(status); }));
  return absl::OkStatus();
}

void WorkerGroup::OnLoss(const absl::Status& reason) {
  absl::MutexLock lock(&mu_);
  if (!loss_.ok()) return;
  loss_ = reason;
  if (told_executor_ != nullptr) {
    told_executor_->ReportLoss(reason);
  } else if (cluster_ != nullptr) {
    cluster_->Interrupt(reason);
  }
}

void WorkerGroup::Interrupt(const absl::Status& reason) {
  absl::MutexLock lock(&mu_);
  if (!loss_.ok()) return;
  loss_ = reason;
  if (told_executor_ != nullptr) told_executor_->Abort(reason);
  if (cluster_ != nullptr) cluster_->Interrupt(reason);
}

absl::Status WorkerGroup::Connect(const Flags& flags) {
  const absl::Duration timeout = flags.local_workers ? flags.register_timeout : absl::Hours(24 * 365);
  ASSIGN_OR_RETURN(members_, cluster_->WaitForGroup(timeout));
  RETURN_IF_ERROR(SettleDevices(flags.device));
  std::vector<WorkerEndpoint> endpoints;
  for (const v1::RegisterRequest& member : members_) {
    endpoints.push_back({member.address(), member.host(), member.pid(), member.device_type()});
  }
  GrpcExecutorOptions options;
  // No exit status of a remote worker will follow its broken connection, so there is little to wait for.
  if (!flags.local_workers) options.blame_grace = absl::Milliseconds(50);
  ASSIGN_OR_RETURN(executor_, GrpcExecutor::Create(std::move(endpoints), options));
  {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(loss_);
    told_executor_ = executor_.get();
  }
  RETURN_IF_ERROR(executor_->AwaitConnections());
  cluster_->OnSilence([this](const absl::Status& status) { OnLoss(status); });
  cluster_->OnStall([this](const absl::Status& status) { executor_->ReportStall(status); });
  return absl::OkStatus();
}

// The ranks run on the device that --device names, else on the one that each of them found, which must be the
// same.
absl::Status WorkerGroup::SettleDevices(v1::DeviceType asked) {
  for (v1::RegisterRequest& member : members_) {
    if (asked != v1::DEVICE_TYPE_UNSPECIFIED) member.set_device_type(asked);
  }
  for (const v1::RegisterRequest& member : members_) {
    if (member.device_type() == members_[0].device_type()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("--device: the worker on ", member.host(), " (pid ", member.pid(), ") found ",
                     DeviceName(member.device_type()), ", the one on ", members_[0].host(), " (pid ",
                     members_[0].pid(), ") ", DeviceName(members_[0].device_type()), "; say which"));
  }
  return absl::OkStatus();
}

absl::StatusOr<KvPlan> WorkerGroup::Load(const Flags& flags, const ModelConfig& config,
                                         int32_t max_model_len) {
  RETURN_IF_ERROR(Connect(flags));
  const v1::LoadModelRequest request = MakeLoadRequest(flags, config, max_model_len);
  LoadProgress progress;
  ASSIGN_OR_RETURN(
      const std::vector<LoadedRank> ranks,
      executor_->LoadModel(request, [&](int64_t done, int64_t total) { progress.Update(done, total); }));
  progress.Finish();

  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    LogRank(static_cast<int>(rank), members_[rank], ranks[rank]);
  }
  ASSIGN_OR_RETURN(const KvPlan plan, PlanBlocks(flags, members_, ranks, max_model_len));
  v1::KvCacheConfig cache;
  cache.set_block_size(flags.block_size);
  cache.set_num_blocks(plan.num_blocks);
  cache.set_dtype(request.kv_cache_dtype());
  RETURN_IF_ERROR(executor_->AllocateKvCache(cache));
  LogInfo("KV cache: {} blocks of {} tokens in {}, {} on rank 0", TotalBlocks(plan.num_blocks),
          flags.block_size, KvCacheDTypeName(request.kv_cache_dtype()),
          FormatMib(plan.num_blocks * ranks[0].kv_block_bytes));
  return plan;
}

std::vector<v1::RankStatus> WorkerGroup::RankStatuses() {
  std::vector<v1::RankStatus> ranks;
  if (executor_ == nullptr) return ranks;
  const auto statuses = executor_->RankStatuses(absl::Seconds(2));
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    v1::RankStatus status;
    status.set_rank(static_cast<int32_t>(rank));
    status.set_host(members_[rank].host());
    status.set_pid(members_[rank].pid());
    status.set_device(
        absl::StrCat(DeviceName(members_[rank].device_type()), ":", members_[rank].device_index()));
    if (statuses[rank].ok()) {
      *status.mutable_bytes_by_tag() = statuses[rank]->bytes_by_tag();
      status.set_rss_bytes(statuses[rank]->rss_bytes());
      status.set_graph_bytes(statuses[rank]->graph_bytes());
      status.set_state(statuses[rank]->state());
      status.set_sleep_level(statuses[rank]->sleep_level());
    } else {
      status.set_error(std::string(statuses[rank].status().message()));
    }
    ranks.push_back(std::move(status));
  }
  return ranks;
}

void WorkerGroup::Stop() {
  if (cluster_ != nullptr) {
    cluster_->OnSilence(nullptr);
    cluster_->OnStall(nullptr);
  }
  if (executor_ != nullptr) executor_->Shutdown(absl::Seconds(2));
  if (processes_ != nullptr) processes_->Terminate(absl::Seconds(5));
  {
    absl::MutexLock lock(&mu_);
    told_executor_ = nullptr;
  }
  processes_.reset();
  executor_.reset();
  {
    absl::MutexLock lock(&mu_);
    if (loss_.ok()) loss_ = absl::CancelledError("stopped");
  }
  cluster_.reset();
}

}  // namespace somnus
