#include "worker/comm/tcp_link.h"

#include <utility>
#include <vector>

#include "base/running_clock.h"
#include "base/status_macros.h"
#include "worker/comm/tcp_links.h"
#include "worker/comm/tcp_rendezvous.h"

namespace somnus {
namespace {

class TcpLink : public StageLink {
 public:
  TcpLink(const GroupOptions& options, std::unique_ptr<TcpLinks> links)
      : peer_(1 - options.rank),
        timeout_(options.collective_timeout),
        links_(std::move(links)),
        transfers_(2) {}

  absl::Status Send(const void* data, int64_t bytes) override {
    transfers_[peer_] = {.send = data, .send_bytes = bytes, .receives = false};
    return Move(bytes);
  }
  absl::Status Receive(void* data, int64_t bytes) override {
    transfers_[peer_] = {.receive = data, .receive_bytes = bytes, .sends = false};
    return Move(bytes);
  }

  absl::Status Exchange(const void* mine, void* theirs, int64_t bytes) override {
    transfers_[peer_] = {mine, bytes, theirs, bytes};
    return links_->Exchange(kExchange | static_cast<uint64_t>(bytes), transfers_, {RunningNow() + timeout_});
  }

  // Both ends are there, and no message is under way.
  absl::Status Meet(const WaitLimit& limit) {
    transfers_[peer_] = TcpTransfer();
    return links_->Exchange(0, transfers_, limit);
  }

  void Abort(const std::string& reason) override { links_->Abort(reason); }
  absl::Status status() const override { return links_->Health(); }

 private:
  // The number of bytes describes the round.
  absl::Status Move(int64_t bytes) {
    if (bytes == 0) return absl::OkStatus();
    return links_->Exchange(static_cast<uint64_t>(bytes), transfers_, {RunningNow() + timeout_});
  }

  // Marks the round of an exchange.
  static constexpr uint64_t kExchange = uint64_t{1} << 63;

  const int peer_;
  const absl::Duration timeout_;
  const std::unique_ptr<TcpLinks> links_;
  std::vector<TcpTransfer> transfers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StageLink>> MakeTcpLink(const GroupOptions& group, TcpListener listener) {
  if (group.world_size != 2) return absl::InvalidArgumentError("world_size: a link has two ranks");
  RETURN_IF_ERROR(CheckTcpOptions(group));
  const GroupOptions options = WithDefaults(group, absl::Seconds(30), 4 << 20);
  const WaitLimit limit = {RunningNow() + *options.connect_timeout, options.cancelled};
  ASSIGN_OR_RETURN(std::unique_ptr<TcpLinks> links, ConnectTcpLinks(options, std::move(listener), limit));
  auto link = std::make_unique<TcpLink>(options, std::move(links));
  RETURN_IF_ERROR(link->Meet(limit));
  return link;
}

}  // namespace somnus
