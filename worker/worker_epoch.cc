#include "worker/worker_epoch.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "worker/comm/nccl_api.h"
#include "worker/worker_load.h"

namespace somnus {

absl::Status WorkerEpoch::Announce(int64_t epoch) {
  RETURN_IF_ERROR(fence_.Begin(epoch));
  AbortUpTo(epoch - 1, absl::StrCat("epoch ", epoch, " begins"));
  return absl::OkStatus();
}

void WorkerEpoch::AbortUpTo(int64_t epoch, const std::string& reason) {
  masks_.EndUpTo(epoch, reason);
  communicator_.AbortUpTo(epoch, reason);
}

void WorkerEpoch::Abort(const std::string& reason) { AbortUpTo(std::numeric_limits<int64_t>::max(), reason); }

absl::StatusOr<v1::NewGroupResponse> WorkerEpoch::NewGroup(const v1::NewGroupRequest& request) {
  RETURN_IF_ERROR(fence_.Admit(request.group_epoch()));
  v1::NewGroupResponse response;
  if (!request.listen_host().empty()) {
    GroupPorts ports;
    ASSIGN_OR_RETURN(ports.group, ListenOnTcp(request.listen_host()));
    response.set_port(ports.group.port);
    if (request.opens_link()) {
      ASSIGN_OR_RETURN(ports.link, ListenOnTcp(request.listen_host()));
      response.set_link_port(ports.link.port);
    }
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(fence_.Check(request.group_epoch()));  // an epoch that begins after this closes the ports
    open_ports_ = std::move(ports);
    return response;
  }
  absl::StatusOr<const NcclApi*> nccl = NcclApi::Load();
  if (!nccl.ok()) {
    LogWarning("{}", std::string(nccl.status().message()));
    return response;
  }
  ASSIGN_OR_RETURN(*response.mutable_nccl_unique_id(), MakeNcclUniqueId(**nccl));
  return response;
}

void WorkerEpoch::Begin(int64_t epoch) {
  communicator_.BeginEpoch(epoch);
  masks_.BeginEpoch(epoch);
  TakeOpenPorts();  // closes the ports
  lifecycle_.BeginEpoch(epoch);
  begun_ = epoch;
  ranks_may_differ_ = false;
  fence_.Complete(epoch);
  LogInfo("epoch {} begins", epoch);
}

absl::Status WorkerEpoch::Join(const v1::ParallelConfig& parallel, const WorkerLoad& load) {
  RETURN_IF_ERROR(
      lifecycle_.Require({WorkerState::kLoaded, WorkerState::kAwake, WorkerState::kAsleep}, "JoinGroup"));
  if (communicator_.joined()) {
    return absl::FailedPreconditionError(
        absl::StrCat("JoinGroup: the worker is in the group of epoch ", begun_, " already"));
  }
  const v1::ParallelConfig& loaded = load.request().parallel();
  if (parallel.rank() != loaded.rank() || parallel.world_size() != loaded.world_size() ||
      RanksOfStage(parallel) != RanksOfStage(loaded)) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel: rank ", parallel.rank(), " of ", parallel.world_size(), ", ",
                     RanksOfStage(parallel), " in a stage, but the weights are those of rank ", loaded.rank(),
                     " of ", loaded.world_size(), ", ", RanksOfStage(loaded), " in a stage"));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> group,
                   load.MakeGroup(parallel, TakeOpenPorts(), [this] { return communicator_.aborted(); }));
  ranks_may_differ_ = lifecycle_.state() != WorkerState::kLoaded;
  return communicator_.Join(std::move(group));
}

GroupPorts WorkerEpoch::TakeOpenPorts() {
  absl::MutexLock lock(&mu_);
  return std::exchange(open_ports_, GroupPorts());
}

absl::Status WorkerEpoch::RequireGroup(const char* call) const {
  if (communicator_.joined()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(call, ": JoinGroup of epoch ", begun_, " comes first"));
}

absl::Status WorkerEpoch::Suspend() {
  if (!communicator_.joined() || ranks_may_differ_) return absl::OkStatus();
  const absl::Status status = communicator_.Suspend();
  return status.ok() ? status : FailCurrent(status);
}

absl::Status WorkerEpoch::Resume() {
  ranks_may_differ_ = false;
  const absl::Status status = communicator_.Resume();
  return status.ok() ? status : FailCurrent(status);
}

absl::Status WorkerEpoch::Fail(int64_t epoch, const absl::Status& status) {
  if (lifecycle_.Fail(epoch, status)) {
    // A Fence ends calls of an older epoch with errors, which are no fault of this rank.
    if (announced() == epoch) LogError("{}", status.ToString());
    AbortUpTo(epoch, absl::StrCat("rank ", communicator_.number(), " failed: ", status.message()));
  }
  return status;
}

absl::Status WorkerEpoch::FailForGood(const absl::Status& status) {
  if (lifecycle_.FailForGood(status)) {
    LogError("{}", status.ToString());
    Abort(absl::StrCat("rank ", communicator_.number(), " failed: ", status.message()));
  }
  return status;
}

}  // namespace somnus
