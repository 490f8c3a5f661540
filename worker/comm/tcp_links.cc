#include "worker/comm/tcp_links.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/running_clock.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

std::vector<UniqueFd> TakeNotices(std::vector<TcpPeer>* peers) {
  std::vector<UniqueFd> connections;
  for (TcpPeer& peer : *peers) connections.push_back(std::move(peer.notices));
  return connections;
}

constexpr size_t kMinSecretBytes = 16;

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// The rest of a header and of the data behind the header, of which `done` bytes have been moved.
struct Rest {
  Rest(void* header, int64_t header_bytes, void* data, int64_t data_bytes, int64_t done) {
    const int64_t of_header = std::min(done, header_bytes), of_data = done - of_header;
    parts[0] = {static_cast<char*>(header) + of_header, static_cast<size_t>(header_bytes - of_header)};
    parts[1] = {data_bytes == 0 ? nullptr : static_cast<char*>(data) + of_data,
                static_cast<size_t>(data_bytes - of_data)};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
  }
  Rest(const Rest&) = delete;
  Rest& operator=(const Rest&) = delete;

  iovec parts[2];
  msghdr message = {};
};

}  // namespace

TcpLinks::TcpLinks(TcpLinksOptions options, std::vector<TcpPeer> peers, UniqueFd wake)
    : options_(std::move(options)),
      notices_(TakeNotices(&peers), std::move(wake), options_.names),
      links_(peers.size()) {
  for (size_t r = 0; r < peers.size(); ++r) links_[r].fd = std::move(peers[r].data);
}

absl::Status TcpLinks::Exchange(uint64_t call, const std::vector<TcpTransfer>& transfers,
                                const WaitLimit& limit) {
  RETURN_IF_ERROR(notices_.failure());
  StartRound(call, transfers);
  const MonotonicTime start = RunningNow();
  MonotonicTime spin_until = MonotonicNow() + options_.spin_time;
  while (true) {
    bool moved = false, complete = false;
    if (absl::Status status = Move(&moved, &complete); !status.ok()) {
      // A rank that aborts and then leaves has said why.
      RETURN_IF_ERROR(notices_.Read());
      return notices_.Fail(status);
    }
    if (complete) return absl::OkStatus();
    if (moved) continue;
    const MonotonicTime now = MonotonicNow();
    if (now < spin_until) continue;
    if (absl::Status status = limit.Check(); !status.ok()) {
      return notices_.Fail(absl::IsAborted(status) ? status : Late(limit.deadline - start));
    }
    RETURN_IF_ERROR(Wait(limit));
    spin_until = now;  // after one block the peers are late enough for a second block
  }
}

void TcpLinks::StartRound(uint64_t call, const std::vector<TcpTransfer>& transfers) {
  header_.call = call;
  ++header_.round;
  for (size_t r = 0; r < links_.size(); ++r) {
    links_[r].transfer = transfers[r];
    links_[r].sent_bytes = links_[r].received_bytes = 0;
  }
}

absl::Status TcpLinks::Move(bool* moved, bool* complete) {
  *complete = true;
  for (int r = 0; r < static_cast<int>(links_.size()); ++r) {
    if (r == options_.rank) continue;
    ASSIGN_OR_RETURN(const int64_t sent, SendSome(r));
    ASSIGN_OR_RETURN(const int64_t received, ReceiveSome(r));
    *moved = *moved || sent > 0 || received > 0;
    *complete = *complete && links_[r].SendsAll() && links_[r].ReceivedAll();
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> TcpLinks::SendSome(int rank) {
  Link& link = links_[rank];
  if (link.SendsAll()) return 0;
  const Rest rest(&header_, HeaderBytes(), const_cast<void*>(link.transfer.send), link.transfer.send_bytes,
                  link.sent_bytes);
  const ssize_t sent = sendmsg(link.fd.get(), &rest.message, MSG_NOSIGNAL);
  if (sent < 0 && WouldBlock()) return 0;
  if (sent < 0) return Lost(rank, strerror(errno));
  link.sent_bytes += sent;
  return sent;
}

absl::StatusOr<int64_t> TcpLinks::ReceiveSome(int rank) {
  Link& link = links_[rank];
  if (link.ReceivedAll()) return 0;
  Rest rest(&link.received, HeaderBytes(), link.transfer.receive, link.transfer.receive_bytes,
            link.received_bytes);
  const ssize_t got = recvmsg(link.fd.get(), &rest.message, 0);
  if (got < 0 && WouldBlock()) return 0;
  if (got < 0) return Lost(rank, strerror(errno));
  if (got == 0) return Lost(rank, "connection closed");
  const bool had_header = link.received_bytes >= HeaderBytes();
  link.received_bytes += got;
  if (!had_header && link.received_bytes >= HeaderBytes()) RETURN_IF_ERROR(CheckHeader(rank));
  return got;
}

absl::Status TcpLinks::CheckHeader(int rank) const {
  const Header& received = links_[rank].received;
  if (received.call == header_.call && received.round == header_.round) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(options_.names[options_.rank], " and ", options_.names[rank],
                                          " are in different collective calls"));
}

absl::Status TcpLinks::Wait(const WaitLimit& limit) {
  fds_.clear();
  notices_.Watch(&fds_);
  const size_t num_notices = fds_.size();
  for (const Link& link : links_) {
    if (link.fd.get() < 0) continue;
    const int events = (link.SendsAll() ? 0 : POLLOUT) | (link.ReceivedAll() ? 0 : POLLIN);
    if (events != 0) fds_.push_back({link.fd.get(), static_cast<short>(events), 0});
  }
  const int ready = poll(fds_.data(), fds_.size(), limit.PollMs());
  if (ready < 0 && errno != EINTR) return notices_.Fail(absl::InternalError(strerror(errno)));
  for (size_t i = 0; ready > 0 && i < num_notices; ++i) {
    if (fds_[i].revents != 0) return notices_.Read();
  }
  return absl::OkStatus();
}

absl::Status TcpLinks::Lost(int rank, const std::string& why) const {
  return absl::UnavailableError(absl::StrCat(options_.names[rank], " died or left the group: ", why));
}

absl::Status TcpLinks::Late(absl::Duration timeout) const {
  for (size_t r = 0; r < links_.size(); ++r) {
    const Link& link = links_[r];
    if (link.fd.get() < 0 || (link.SendsAll() && link.ReceivedAll())) continue;
    return absl::DeadlineExceededError(absl::StrCat(
        options_.names[r], " did not come to a collective within ", absl::FormatDuration(timeout)));
  }
  return absl::InternalError("a round that is complete cannot be late");
}

absl::Status CheckTcpOptions(const GroupOptions& options) {
  RETURN_IF_ERROR(CheckGroupOptions(options, kMaxTcpRanks));
  const auto bad = [](const auto&... text) { return absl::InvalidArgumentError(absl::StrCat(text...)); };
  if (options.world_size > 1 && options.rank_addresses.size() != static_cast<size_t>(options.world_size))
    return bad("rank_addresses: ", options.rank_addresses.size(), " for ", options.world_size, " ranks");
  if (options.world_size > 1 && options.secret.size() < kMinSecretBytes)
    return bad("secret: at least ", kMinSecretBytes, " bytes are wanted");
  if (options.unreachable_timeout < absl::Seconds(2) || options.unreachable_timeout > absl::Minutes(10))
    return bad("unreachable_timeout: 2 s to 10 min are wanted");
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TcpLinks>> ConnectTcpLinks(const GroupOptions& options, TcpListener listener,
                                                          const WaitLimit& limit) {
  ASSIGN_OR_RETURN(std::vector<TcpPeer> peers, MeetOverTcp(options, std::move(listener), limit));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake.get() < 0) return absl::InternalError(absl::StrCat("eventfd: ", strerror(errno)));
  TcpLinksOptions links;
  links.rank = options.rank;
  links.spin_time = options.spin ? options.spin_time : absl::ZeroDuration();
  for (int r = 0; r < options.world_size; ++r) {
    links.names.push_back(absl::StrCat("rank ", NumberOf(options, r), " (", options.rank_addresses[r], ")"));
  }
  return std::make_unique<TcpLinks>(std::move(links), std::move(peers), std::move(wake));
}

}  // namespace somnus
