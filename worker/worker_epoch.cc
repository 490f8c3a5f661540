// The Worker's epochs: how one begins, and how its group forms.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/build_id.h"
#include "base/log.h"
#include "base/monotonic.h"
#include "base/status_macros.h"
#include "worker/comm/device_group.h"
#include "worker/comm/host_group.h"
#include "worker/worker.h"

namespace somnus {

absl::StatusOr<v1::WorkerSnapshot> Worker::Fence(int64_t epoch, absl::Duration patience,
                                                 const std::function<void()>& end_streams) {
  RETURN_IF_ERROR(fence_.Begin(epoch));
  AbortUpTo(epoch - 1, absl::StrCat("epoch ", epoch, " begins"));
  end_streams();
  struct Result {
    absl::Status status;
    StopSignal known;
  };
  const auto begun = std::make_shared<Result>();  // shared: it may be known after `patience` only
  thread_.Post([this, epoch, begun] {
    begun->status = BeginEpoch(epoch);
    begun->known.Stop();
  });
  if (!begun->known.WaitFor(patience)) {
    return absl::DeadlineExceededError(
        absl::StrCat("Fence: the device is still busy after ", absl::FormatDuration(patience)));
  }
  RETURN_IF_ERROR(begun->status);
  return Snapshot();
}

absl::Status Worker::BeginEpoch(int64_t epoch) {
  if (!fence_.pending(epoch)) return fence_.Check(epoch);  // an earlier call has done it, or a later one will
  if (runner_ != nullptr) {
    // A device that returns errors even when nothing is left to do has to be opened by a new process.
    if (absl::Status status = runner_->BeginEpoch(); !status.ok()) return FailForGood(status);
  }
  AbortPrepared();
  ForgetKept(/*with_swapped=*/true);  // no coordinator begins an epoch with what was computed in another one
  update_.reset();
  last_transition_ = last_committed_ = 0;
  transition_meter_.Forget();
  communicator_.BeginEpoch(epoch);
  TakeOpenPort();
  lifecycle_.BeginEpoch(epoch);
  epoch_ = epoch;
  stepped_in_epoch_ = false;
  ranks_may_differ_ = false;
  fence_.Complete(epoch);
  LogInfo("epoch {} begins", epoch);
  return absl::OkStatus();
}

absl::Status Worker::DoJoinGroup(const v1::ParallelConfig& parallel) {
  RETURN_IF_ERROR(
      lifecycle_.Require({WorkerState::kLoaded, WorkerState::kAwake, WorkerState::kAsleep}, "JoinGroup"));
  if (communicator_.joined()) {
    return absl::FailedPreconditionError(
        absl::StrCat("JoinGroup: the worker is in the group of epoch ", epoch_, " already"));
  }
  if (parallel.rank() != communicator_.rank() || parallel.world_size() != communicator_.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parallel: rank ", parallel.rank(), " of ", parallel.world_size(),
        ", but the weights are those of rank ", communicator_.rank(), " of ", communicator_.world_size()));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> group, MakeGroup(parallel));
  ranks_may_differ_ = lifecycle_.state() != WorkerState::kLoaded;
  return communicator_.Join(std::move(group));
}

absl::StatusOr<std::unique_ptr<Communicator>> Worker::MakeGroup(const v1::ParallelConfig& parallel) {
  if (parallel.world_size() == 1) return MakeSingleCommunicator();
  if (device_->kind() == DeviceKind::kCuda) {
    DeviceGroupOptions options;
    options.group_name = parallel.group_name();
    options.rank = parallel.rank();
    options.world_size = parallel.world_size();
    options.rank_hosts.assign(parallel.rank_hosts().begin(), parallel.rank_hosts().end());
    options.nccl_unique_id = parallel.nccl_unique_id();
    options.batch_invariant = load_request_.batch_invariant();
    options.cancelled = [this] { return communicator_.aborted(); };
    return parts_.join_devices(options, device_.get());
  }
  HostGroupOptions options;
  options.group_name = parallel.group_name();
  options.rank = parallel.rank();
  options.world_size = parallel.world_size();
  options.rank_addresses.assign(parallel.rank_addresses().begin(), parallel.rank_addresses().end());
  options.secret = parallel.group_secret();
  options.spin = placement_.spins;
  options.cancelled = [this] { return communicator_.aborted(); };
  TcpListener port = TakeOpenPort();
  if (!options.rank_addresses.empty() && port.fd.get() < 0) {
    return absl::FailedPreconditionError("JoinGroup: NewGroup has opened no port for ranks on other hosts");
  }
  return JoinHostGroup(options, std::move(port));
}

TcpListener Worker::TakeOpenPort() {
  absl::MutexLock lock(&mu_);
  return std::exchange(open_port_, TcpListener());
}

absl::Status Worker::RequireGroup(const char* call) const {
  if (communicator_.joined()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(call, ": JoinGroup of epoch ", epoch_, " comes first"));
}

v1::WorkerSnapshot Worker::Snapshot() const {
  v1::WorkerSnapshot snapshot;
  snapshot.set_state(WorkerStateName(lifecycle_.state()));
  snapshot.set_sleep_level(lifecycle_.sleep_level());
  snapshot.set_group_epoch(group_epoch());
  snapshot.set_weights_version(weights_version());
  snapshot.set_weights_stale(weights_.stale());
  snapshot.set_checkpoint_fingerprint(weights_.fingerprint());
  snapshot.set_last_step_id(last_step_id());
  snapshot.set_build_id(BuildId());
  {
    absl::MutexLock lock(&mu_);
    snapshot.set_rank(loaded_.rank);
    snapshot.set_world_size(loaded_.world_size);
    snapshot.set_options_digest(loaded_.options_digest);
    snapshot.set_num_blocks(loaded_.num_blocks);
    snapshot.set_num_mapped_blocks(loaded_.num_mapped_blocks);
    snapshot.set_num_host_blocks(loaded_.num_host_blocks);
    snapshot.set_weights_bytes(loaded_.weights_bytes);
    snapshot.set_kv_block_bytes(loaded_.kv_block_bytes);
  }
  if (const auto allocator = this->allocator(); allocator != nullptr) {
    for (const auto& [tag, stats] : allocator->Stats()) {
      if (stats.sleeping == 0) snapshot.add_resident_tags(tag);
    }
  }
  return snapshot;
}

}  // namespace somnus
