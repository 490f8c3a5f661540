#include "worker/comm/device_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "worker/comm/device_communicator.h"
#include "worker/comm/nccl_communicator.h"

namespace somnus {
namespace {

class Joiner {
 public:
  Joiner(const GroupOptions& options, Device* device) : options_(options) {
    parts_.rank = options.rank;
    parts_.world_size = options.world_size;
    parts_.device = device;
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Join(const MakePeers& make_peers,
                                                     const absl::StatusOr<const NcclApi*>& nccl) {
    if (OneHost()) {
      GroupOptions host = options_;
      host.buffer_bytes = 4096;
      host.spin = false;  // only for setting up and barriers
      ASSIGN_OR_RETURN(parts_.host, MakeShmCommunicator(host));
      RETURN_IF_ERROR(JoinPeers(make_peers));
    } else {
      no_peers_ = absl::UnavailableError("ranks are on several hosts");
    }
    RETURN_IF_ERROR(JoinNccl(nccl));
    if (parts_.peers == nullptr && parts_.nccl == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "ranks cannot communicate. Peer memory: ", no_peers_.message(), ". NCCL: ", no_nccl_.message()));
    }
    if (parts_.peers == nullptr) LogInfo("collectives by NCCL alone: {}", std::string(no_peers_.message()));
    if (parts_.nccl == nullptr) LogInfo("collectives without NCCL: {}", std::string(no_nccl_.message()));
    return MakeDeviceCommunicator(std::move(parts_));
  }

 private:
  bool OneHost() const {
    const std::vector<std::string>& hosts = options_.rank_hosts;
    return std::all_of(hosts.begin(), hosts.end(), [&](const std::string& host) { return host == hosts[0]; });
  }

  // Exchanges verdicts. `verdict` stays ok when every rank's verdict is ok; otherwise becomes this rank's own
  // error, or names a rank with an error. Returns an error of the exchange itself.
  absl::Status Agree(absl::Status* verdict) {
    const char ok = verdict->ok() ? 1 : 0;
    std::vector<char> all(options_.world_size);
    RETURN_IF_ERROR(parts_.host->AllGather(&ok, 1, all.data()));
    const auto bad = std::find(all.begin(), all.end(), 0);
    if (verdict->ok() && bad != all.end()) {
      *verdict = absl::UnavailableError(absl::StrCat("rank ", bad - all.begin(), " cannot"));
    }
    return absl::OkStatus();
  }

  absl::Status JoinPeers(const MakePeers& make_peers) {
    PeerOptions peer_options;
    peer_options.rank = options_.rank;
    peer_options.world_size = options_.world_size;
    peer_options.buffer_bytes = *options_.buffer_bytes;
    peer_options.timeout = options_.collective_timeout;
    absl::StatusOr<std::unique_ptr<PeerCollectives>> made = make_peers(peer_options);
    no_peers_ = made.status();
    RETURN_IF_ERROR(Agree(&no_peers_));
    if (!no_peers_.ok()) return absl::OkStatus();

    const PeerHandle mine = (*made)->handle();
    std::vector<PeerHandle> handles(options_.world_size);
    RETURN_IF_ERROR(parts_.host->AllGather(&mine, sizeof(mine), handles.data()));
    shared_device_ = SharedDevice(handles);
    RETURN_IF_ERROR(ConnectPeers(**made, handles));
    if (no_peers_.ok()) {
      parts_.peers = *std::move(made);
      return absl::OkStatus();
    }
    (*made)->Disconnect();
    return parts_.host->Barrier();  // before any rank frees memory
  }

  // Maps the ranks' memory, and checks the mappings with data that every rank writes and every other rank
  // reads. no_peers_ says whether that worked on all ranks, which exchange verdicts after every step.
  absl::Status ConnectPeers(PeerCollectives& peers, const std::vector<PeerHandle>& handles) {
    no_peers_ = peers.Connect(handles);
    RETURN_IF_ERROR(Agree(&no_peers_));
    if (no_peers_.ok()) no_peers_ = peers.WriteProbe();
    RETURN_IF_ERROR(Agree(&no_peers_));
    if (no_peers_.ok()) no_peers_ = peers.CheckProbe();
    RETURN_IF_ERROR(Agree(&no_peers_));
    const PeerLink mine = peers.link();
    std::vector<PeerLink> links(options_.world_size);
    RETURN_IF_ERROR(parts_.host->AllGather(&mine, sizeof(mine), links.data()));
    parts_.link = *std::max_element(links.begin(), links.end());
    peers.SetGroupLink(parts_.link);
    return absl::OkStatus();
  }

  static bool SharedDevice(const std::vector<PeerHandle>& handles) {
    for (size_t a = 0; a < handles.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        if (std::memcmp(handles[a].device_uuid, handles[b].device_uuid, sizeof(handles[a].device_uuid)) == 0)
          return true;
      }
    }
    return false;
  }

  absl::Status JoinNccl(const absl::StatusOr<const NcclApi*>& api) {
    no_nccl_ = api.status();
    if (options_.nccl_unique_id.empty()) no_nccl_ = absl::UnavailableError("rank 0 made no unique id");
    if (shared_device_) no_nccl_ = absl::UnavailableError("ranks share a device");
    if (options_.batch_invariant) no_nccl_ = absl::UnavailableError("its sums are not batch invariant");
    if (parts_.host != nullptr) RETURN_IF_ERROR(Agree(&no_nccl_));
    if (!no_nccl_.ok()) return absl::OkStatus();

    absl::StatusOr<std::unique_ptr<NcclCommunicator>> made = StartNccl(**api);
    no_nccl_ = made.status();
    if (parts_.host != nullptr) RETURN_IF_ERROR(Agree(&no_nccl_));
    if (no_nccl_.ok()) {
      parts_.nccl = *std::move(made);
    } else {
      LogWarning("NCCL: {}", std::string(no_nccl_.message()));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<NcclCommunicator>> StartNccl(const NcclApi& api) {
    NcclOptions nccl;
    nccl.rank = options_.rank;
    nccl.world_size = options_.world_size;
    nccl.unique_id = options_.nccl_unique_id;
    nccl.stream = options_.stream;
    nccl.init_timeout = *options_.connect_timeout;
    nccl.call_timeout = options_.collective_timeout;
    // The communicator that holds both destroys NCCL's first.
    nccl.health = [host = parts_.host.get(), cancelled = options_.cancelled]() -> absl::Status {
      if (cancelled != nullptr && cancelled())
        return absl::AbortedError("cancelled while the group was forming");
      return host == nullptr ? absl::OkStatus() : host->status();
    };
    ASSIGN_OR_RETURN(std::unique_ptr<NcclCommunicator> made, NcclCommunicator::Start(api, std::move(nccl)));
    RETURN_IF_ERROR(made->AwaitReady());
    return made;
  }

  const GroupOptions& options_;
  DeviceGroupParts parts_;
  absl::Status no_peers_, no_nccl_;  // why not
  bool shared_device_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> JoinDeviceGroup(const GroupOptions& options, Device* device,
                                                              const MakePeers& make_peers,
                                                              absl::StatusOr<const NcclApi*> nccl) {
  if (options.world_size == 1) return MakeSingleCommunicator();
  if (!options.rank_hosts.empty() && static_cast<int>(options.rank_hosts.size()) != options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank_hosts: ", options.rank_hosts.size(), " for ", options.world_size, " ranks"));
  }
  const GroupOptions filled = WithDefaults(options, absl::Seconds(120), 2 << 20);
  return Joiner(filled, device).Join(make_peers, nccl);
}

}  // namespace somnus
