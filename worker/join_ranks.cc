#include "worker/join_ranks.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/comm/host_group.h"
#include "worker/comm/pipeline_communicator.h"
#include "worker/load_options.h"

namespace somnus {
namespace {

class RankJoiner {
 public:
  RankJoiner(const v1::ParallelConfig& parallel, const GroupOptions& options, GroupPorts ports)
      : parallel_(parallel),
        options_(options),
        ports_(std::move(ports)),
        stage_ranks_(RanksOfStage(parallel)) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Join(const JoinDevices& devices) {
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> stage, JoinStage(devices));
    const int rank = parallel_.rank(), world_size = parallel_.world_size();
    if (stage_ranks_ == world_size) return stage;
    // In the order of the stages: the first stage has no previous stage to wait for.
    std::unique_ptr<StageLink> previous, next;
    if (rank >= stage_ranks_) {
      ASSIGN_OR_RETURN(previous, JoinLink(rank - stage_ranks_, StageLink::kReceiver, devices));
    }
    if (rank + stage_ranks_ < world_size) {
      ASSIGN_OR_RETURN(next, JoinLink(rank, StageLink::kSender, devices));
    }
    return MakePipelineCommunicator(std::move(stage), std::move(previous), std::move(next));
  }

 private:
  absl::StatusOr<std::unique_ptr<Communicator>> JoinStage(const JoinDevices& devices) {
    if (stage_ranks_ == 1) return MakeSingleCommunicator();
    const int stage = parallel_.rank() / stage_ranks_;
    std::vector<int> members;
    for (int i = 0; i < stage_ranks_; ++i) members.push_back(stage * stage_ranks_ + i);
    GroupOptions options = OptionsOf(members, parallel_.rank_addresses());
    options.nccl_unique_id = parallel_.nccl_unique_id();
    options.rank = parallel_.rank() % stage_ranks_;
    if (stage_ranks_ < parallel_.world_size()) absl::StrAppend(&options.group_name, "-s", stage);
    if (devices.stage != nullptr) return devices.stage(options);
    RETURN_IF_ERROR(CheckPort(options, ports_.group));
    return JoinHostGroup(options, std::move(ports_.group));
  }

  // The link from the rank `sender` to the rank with the same place in the next stage.
  absl::StatusOr<std::unique_ptr<StageLink>> JoinLink(int sender, int end, const JoinDevices& devices) {
    GroupOptions options = OptionsOf({sender, sender + stage_ranks_}, parallel_.link_addresses());
    options.rank = end;
    absl::StrAppend(&options.group_name, "-l", sender);
    if (parallel_.nccl_link_ids_size() > sender) options.nccl_unique_id = parallel_.nccl_link_ids(sender);
    TcpListener port;  // the sender's alone
    if (end == StageLink::kSender) {
      RETURN_IF_ERROR(CheckPort(options, ports_.link));
      port = std::move(ports_.link);
    }
    ASSIGN_OR_RETURN(std::unique_ptr<StageLink> link, JoinHostLink(options, std::move(port)));
    return devices.link == nullptr ? std::move(link) : devices.link(options, std::move(link));
  }

  GroupOptions OptionsOf(const std::vector<int>& members,
                         const google::protobuf::RepeatedPtrField<std::string>& addresses) const {
    GroupOptions options = options_;
    options.group_name = parallel_.group_name();
    options.secret = parallel_.group_secret();
    options.world_size = static_cast<int>(members.size());
    options.numbers = members;
    for (const int member : members) {
      if (parallel_.rank_hosts_size() > 0) options.rank_hosts.push_back(parallel_.rank_hosts(member));
      if (addresses.size() > member) options.rank_addresses.push_back(addresses.Get(member));
    }
    // The coordinator gives addresses where any two ranks are on different hosts.
    const std::vector<std::string>& hosts = options.rank_hosts;
    const bool shares_host = stage_ranks_ < parallel_.world_size() && !hosts.empty() &&
                             std::all_of(hosts.begin(), hosts.end(),
                                         [&](const std::string& host) { return host == hosts.front(); });
    if (shares_host) options.rank_addresses.clear();
    return options;
  }

  static absl::Status CheckPort(const GroupOptions& options, const TcpListener& port) {
    if (options.rank_addresses.empty() || port.fd.get() >= 0) return absl::OkStatus();
    return absl::FailedPreconditionError("JoinGroup: NewGroup has opened no port for ranks on other hosts");
  }

  const v1::ParallelConfig& parallel_;
  const GroupOptions& options_;
  GroupPorts ports_;
  const int stage_ranks_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> JoinRanks(const v1::ParallelConfig& parallel,
                                                        const GroupOptions& options, GroupPorts ports,
                                                        const JoinDevices& devices) {
  return RankJoiner(parallel, options, std::move(ports)).Join(devices);
}

}  // namespace somnus
