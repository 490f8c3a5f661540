#include "worker/comm/device_link.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/monotonic.h"
#include "base/status_macros.h"
#include "worker/comm/group_watch.h"
#include "worker/comm/nccl_communicator.h"

namespace somnus {
namespace {

// More than NCCL sends in one piece of its shortest protocols.
constexpr int64_t kProofBytes = 1 << 16;

std::string About(const GroupOptions& options) {
  return absl::StrCat("the link to rank ", NumberOf(options, 1 - options.rank), ": ");
}

class DeviceLink : public StageLink {
 public:
  // `host` outlives the link, or is given to Keep.
  DeviceLink(const GroupOptions& options, Device* device, StageLink* host,
             std::unique_ptr<NcclCommunicator> nccl)
      : options_(options),
        prove_by_(MonotonicNow() + *options.connect_timeout),
        device_(*device),
        host_(*host),
        nccl_(std::move(nccl)),
        watch_({.look = [this] { return Look(); },
                .end = [this](const std::string& reason) { End(reason); },
                .left = absl::StrCat("rank ", NumberOf(options, options.rank), " left the pipeline")}) {}

  ~DeviceLink() override {
    watch_.Leave();
    device_.Synchronize().IgnoreError();
    watch_.Stop();
  }

  // Sends the first message of the link. Not ok: the link is only good for destruction, and `host` as before.
  absl::Status Prove() {
    ASSIGN_OR_RETURN(void* const pinned, device_.AllocatePinned(kProofBytes));
    const absl::Cleanup free = [&] { device_.FreePinned(pinned); };
    char* const bytes = static_cast<char*>(pinned);
    const std::string& id = options_.nccl_unique_id;
    const auto expected = [&id](int64_t i) { return static_cast<char>(id[i % id.size()] + i / 128); };
    const bool sends = options_.rank == kSender;
    for (int64_t i = 0; i < kProofBytes; ++i) bytes[i] = sends ? expected(i) : 0;
    RETURN_IF_ERROR(sends ? Send(bytes, kProofBytes) : Receive(bytes, kProofBytes));
    RETURN_IF_ERROR(device_.Synchronize());
    RETURN_IF_ERROR(status());
    for (int64_t i = 0; i < kProofBytes; ++i) {
      if (bytes[i] == expected(i)) continue;
      return absl::UnavailableError(absl::StrCat("byte ", i, " of the first message is wrong"));
    }
    return absl::OkStatus();
  }

  // From now on the other end is told of what ends this link.
  void Keep(std::unique_ptr<StageLink> host) {
    owned_host_ = std::move(host);
    proven_ = true;
  }

  bool stream_ordered() const override { return true; }

  absl::Status Send(const void* data, int64_t bytes) override {
    RETURN_IF_ERROR(status());
    return watch_.Noted(nccl_->Send(data, bytes, kReceiver));
  }
  absl::Status Receive(void* data, int64_t bytes) override {
    RETURN_IF_ERROR(status());
    return watch_.Noted(nccl_->Receive(data, bytes, kSender));
  }

  void Abort(const std::string& reason) override { watch_.Fail(absl::AbortedError(reason)); }

  absl::Status status() const override {
    RETURN_IF_ERROR(watch_.error());
    return nccl_->status();  // NCCL may have found an error before the watchdog has
  }

  absl::Status Suspend() override { return watch_.Noted(nccl_->Suspend()); }
  absl::Status Resume() override { return watch_.Noted(nccl_->Resume()); }

 private:
  absl::Status Look() {
    RETURN_IF_ERROR(host_.status());  // a dead rank explains NCCL's errors
    RETURN_IF_ERROR(nccl_->Poll());
    if (proven_) return absl::OkStatus();
    if (options_.cancelled != nullptr && options_.cancelled())
      return absl::AbortedError("cancelled while the link was forming");
    if (MonotonicNow() < prove_by_) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat("the first message has not arrived within ",
                                                    absl::FormatDuration(*options_.connect_timeout)));
  }

  void End(const std::string& reason) {
    if (proven_) host_.Abort(reason);  // the other end gets the cause from here
    nccl_->Abort(reason);
  }

  const GroupOptions options_;
  const MonotonicTime prove_by_;
  Device& device_;
  StageLink& host_;
  std::unique_ptr<StageLink> owned_host_;         // null until Keep
  const std::unique_ptr<NcclCommunicator> nccl_;  // asks `host_` for its health
  std::atomic<bool> proven_{false};
  GroupWatch watch_;  // last
};

class LinkJoiner {
 public:
  LinkJoiner(const GroupOptions& options, const std::string& gpu, Device* device,
             std::unique_ptr<StageLink> host)
      : options_(options), gpu_(gpu), device_(device), host_(std::move(host)) {}

  absl::StatusOr<std::unique_ptr<StageLink>> Join(const absl::StatusOr<const NcclApi*>& api) {
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceLink> link, MakeLink(api));
    const int other = NumberOf(options_, 1 - options_.rank);
    if (link == nullptr) {
      LogInfo("hidden states go through pinned host memory between this rank and rank {}: {}", other,
              std::string(why_not_.message()));
      return std::move(host_);
    }
    LogInfo("hidden states go by NCCL between this rank and rank {}", other);
    link->Keep(std::move(host_));
    return link;
  }

 private:
  struct Verdict {
    char ok;
    char gpu[63];
  };

  // Null: why_not_ says why. An error is one of the agreement itself.
  absl::StatusOr<std::unique_ptr<DeviceLink>> MakeLink(const absl::StatusOr<const NcclApi*>& api) {
    why_not_ = api.status();
    if (options_.nccl_unique_id.empty()) why_not_ = absl::UnavailableError("the sender made no unique id");
    RETURN_IF_ERROR(Agree());
    if (!why_not_.ok()) return nullptr;

    absl::StatusOr<std::unique_ptr<NcclCommunicator>> started = StartNccl(**api);
    why_not_ = started.status();
    RETURN_IF_ERROR(Agree());
    if (!why_not_.ok()) return nullptr;

    auto link = std::make_unique<DeviceLink>(options_, device_, host_.get(), *std::move(started));
    why_not_ = link->Prove();
    RETURN_IF_ERROR(Agree());
    if (!why_not_.ok()) return nullptr;
    return link;
  }

  // Exchanges verdicts. why_not_ stays ok where both ends' are; otherwise it becomes this end's own error, or
  // says that the other end has one.
  absl::Status Agree() {
    if (options_.cancelled != nullptr && options_.cancelled())
      return absl::AbortedError("cancelled while the link was forming");
    Verdict mine = {.ok = why_not_.ok() ? char{1} : char{0}, .gpu = {}}, theirs = {};
    std::memcpy(mine.gpu, gpu_.data(), std::min(gpu_.size(), sizeof(mine.gpu)));
    RETURN_IF_ERROR(host_->Exchange(&mine, &theirs, sizeof(mine)));
    if (!why_not_.ok()) return absl::OkStatus();
    if (theirs.ok == 0) why_not_ = absl::UnavailableError("the other rank cannot use NCCL");
    if (OneHost() && std::memcmp(mine.gpu, theirs.gpu, sizeof(mine.gpu)) == 0)
      why_not_ = absl::UnavailableError("the ranks share a device");
    return absl::OkStatus();
  }

  bool OneHost() const {
    return options_.rank_hosts.size() < 2 || options_.rank_hosts[0] == options_.rank_hosts[1];
  }

  absl::StatusOr<std::unique_ptr<NcclCommunicator>> StartNccl(const NcclApi& api) {
    NcclOptions nccl;
    nccl.rank = options_.rank;
    nccl.world_size = 2;
    nccl.about = About(options_);
    nccl.unique_id = options_.nccl_unique_id;
    nccl.stream = options_.stream;
    nccl.init_timeout = *options_.connect_timeout;
    nccl.call_timeout = options_.collective_timeout;
    nccl.health = [host = host_.get(), cancelled = options_.cancelled]() -> absl::Status {
      if (cancelled != nullptr && cancelled())
        return absl::AbortedError("cancelled while the link was forming");
      return host->status();
    };
    ASSIGN_OR_RETURN(std::unique_ptr<NcclCommunicator> made, NcclCommunicator::Start(api, std::move(nccl)));
    RETURN_IF_ERROR(made->AwaitReady());
    return made;
  }

  const GroupOptions options_;
  const std::string gpu_;
  Device* const device_;
  std::unique_ptr<StageLink> host_;
  absl::Status why_not_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StageLink>> JoinDeviceLink(const GroupOptions& options, const std::string& gpu,
                                                          Device* device, std::unique_ptr<StageLink> host,
                                                          absl::StatusOr<const NcclApi*> nccl) {
  if (options.world_size != 2) return absl::InvalidArgumentError("world_size: a link has two ranks");
  const GroupOptions filled = WithDefaults(options, absl::Seconds(120), 1 << 20);
  return LinkJoiner(filled, gpu, device, std::move(host)).Join(nccl);
}

}  // namespace somnus
