#include "worker/comm/tcp_rendezvous.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/running_clock.h"
#include "base/status_macros.h"
#include "worker/comm/tcp_handshake.h"

namespace somnus {
namespace {

// Connections without a proof yet of belonging to the group: how many there may be, the oldest making room
// for the next, and for how long.
constexpr size_t kMaxUnproved = 256;
constexpr absl::Duration kProofPatience = absl::Seconds(5);

// A message of fixed size that arrives in parts. Never reads past the end.
class Inbox {
 public:
  // Returns whether all of `size` bytes are there. Unavailable: the connection has ended.
  absl::StatusOr<bool> Fill(int fd, size_t size) {
    while (have_ < size) {
      const ssize_t got = recv(fd, bytes_ + have_, size - have_, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
      if (got < 0) return absl::UnavailableError(strerror(errno));
      if (got == 0) return absl::UnavailableError("the connection was closed");
      have_ += static_cast<size_t>(got);
    }
    return true;
  }
  template <typename Message>
  Message Take() {
    Message message;
    memcpy(&message, bytes_, sizeof(message));
    have_ = 0;
    return message;
  }

 private:
  char bytes_[64];
  size_t have_ = 0;
};

// A handshake's messages always fit into the buffer of a new connection.
template <typename Message>
absl::Status SendMessage(int fd, const Message& message) {
  ssize_t sent;
  do {
    sent = send(fd, &message, sizeof(message), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent == sizeof(message)) return absl::OkStatus();
  return absl::UnavailableError(sent < 0 ? strerror(errno) : "the connection takes nothing");
}

// This rank's side of a connection to a lower rank.
struct Dial {
  int rank = 0;
  std::vector<SocketAddress> addresses;
  size_t next_address = 0;
  UniqueFd fd;  // none: done
  bool connected = false;
  TcpHello hello;
  Inbox inbox;
};

// Somebody who connected to this rank.
struct UnprovedPeer {
  UniqueFd fd;  // none: done, or dropped
  MonotonicTime deadline;
  bool greeted = false;  // the Hello was good, and a Challenge was sent
  TcpHello hello;
  Nonce nonce;
  Inbox inbox;
};

class Meeting {
 public:
  Meeting(const GroupOptions& options, TcpListener listener, const WaitLimit& limit)
      : options_(options),
        listener_(std::move(listener)),
        secret_(options.group_name, options.secret),
        limit_(limit),
        peers_(options.world_size) {}

  absl::StatusOr<std::vector<TcpPeer>> Meet() {
    RETURN_IF_ERROR(DialLowerRanks());
    while (!Complete()) {
      RETURN_IF_ERROR(Wait());
      for (Dial& dial : dials_) {
        if (dial.fd.get() >= 0) RETURN_IF_ERROR(Advance(&dial));
      }
      RETURN_IF_ERROR(AcceptConnections());
      for (UnprovedPeer& peer : unproved_) Advance(&peer);
      DropRefused();
    }
    return std::move(peers_);
  }

 private:
  bool Complete() const {
    for (int r = 0; r < options_.world_size; ++r) {
      const TcpPeer& peer = peers_[r];
      if (r != options_.rank && (peer.data.get() < 0 || peer.notices.get() < 0)) return false;
    }
    return true;
  }

  UniqueFd& Place(int rank, int32_t channel) {
    return channel == static_cast<int32_t>(TcpChannel::kData) ? peers_[rank].data : peers_[rank].notices;
  }

  absl::Status Keep(int rank, int32_t channel, UniqueFd fd) {
    const bool notices = channel == static_cast<int32_t>(TcpChannel::kNotices);
    RETURN_IF_ERROR(SetUpConnection(fd.get(), options_.unreachable_timeout, notices));
    Place(rank, channel) = std::move(fd);
    return absl::OkStatus();
  }

  // Waits until something can be done. Unavailable: a rank that was there already has gone.
  absl::Status Wait() {
    std::vector<pollfd> fds;
    std::vector<int> ranks;
    for (int r = 0; r < options_.world_size; ++r) {
      // The rank may have sent data already, which are not for this class.
      if (peers_[r].data.get() >= 0) fds.push_back({peers_[r].data.get(), POLLRDHUP, 0}), ranks.push_back(r);
    }
    fds.push_back({listener_.fd.get(), POLLIN, 0});
    for (const Dial& dial : dials_) {
      const short events = dial.connected ? POLLIN : POLLOUT;
      fds.push_back({dial.fd.get(), events, 0});
    }
    for (const UnprovedPeer& peer : unproved_) {
      fds.push_back({peer.fd.get(), POLLIN, 0});
    }
    const int ready = poll(fds.data(), fds.size(), limit_.PollMs());
    if (ready < 0 && errno != EINTR) return absl::InternalError(absl::StrCat("poll: ", strerror(errno)));
    for (size_t i = 0; ready > 0 && i < ranks.size(); ++i) {
      if (fds[i].revents != 0) return Gone(ranks[i]);
    }
    const absl::Status status = limit_.Check();
    return absl::IsDeadlineExceeded(status) ? Missing() : status;
  }

  absl::Status DialLowerRanks() {
    for (int r = 0; r < options_.rank; ++r) {
      ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses, ResolveTcp(options_.rank_addresses[r]));
      for (int32_t channel = 0; channel < kTcpChannels; ++channel) {
        Dial& dial = dials_.emplace_back();
        dial.rank = r;
        dial.addresses = addresses;
        dial.hello.from = options_.rank;
        dial.hello.to = r;
        dial.hello.world_size = options_.world_size;
        dial.hello.channel = channel;
        dial.hello.nonce = TcpSecret::NewNonce();
        RETURN_IF_ERROR(DialNext(&dial, absl::OkStatus()));
      }
    }
    return absl::OkStatus();
  }

  // Tries the rank's next address. `why`: the fault of the address before.
  absl::Status DialNext(Dial* dial, absl::Status why) {
    dial->connected = false;
    while (dial->next_address < dial->addresses.size()) {
      absl::StatusOr<UniqueFd> fd = StartConnect(dial->addresses[dial->next_address++]);
      if (fd.ok()) {
        dial->fd = *std::move(fd);
        return absl::OkStatus();
      }
      why = fd.status();
    }
    return absl::UnavailableError(absl::StrCat(Name(dial->rank), ": ", why.message()));
  }

  absl::Status Advance(Dial* dial) {
    if (!dial->connected) {
      pollfd writable = {dial->fd.get(), POLLOUT, 0};
      if (poll(&writable, 1, 0) <= 0) return absl::OkStatus();
      absl::Status status = FinishConnect(dial->fd.get());
      if (status.ok()) status = SendMessage(dial->fd.get(), dial->hello);
      if (!status.ok()) return DialNext(dial, std::move(status));
      dial->connected = true;
    }
    const absl::StatusOr<bool> complete = dial->inbox.Fill(dial->fd.get(), sizeof(TcpChallenge));
    if (!complete.ok()) {
      return absl::UnavailableError(absl::StrCat(Name(dial->rank), ": ", complete.status().message()));
    }
    if (!*complete) return absl::OkStatus();
    const auto challenge = dial->inbox.Take<TcpChallenge>();
    if (!TcpSecret::Same(challenge.mac, secret_.ChallengeMac(dial->hello, challenge.nonce))) {
      return absl::PermissionDeniedError(
          absl::StrCat(Name(dial->rank), " does not hold this group's secret"));
    }
    const TcpProof proof = {secret_.ProofMac(dial->hello, challenge.nonce)};
    if (!SendMessage(dial->fd.get(), proof).ok()) return Gone(dial->rank);
    return Keep(dial->rank, dial->hello.channel, std::move(dial->fd));
  }

  absl::Status AcceptConnections() {
    if (listener_.fd.get() < 0) return absl::OkStatus();  // of the last rank, which needs no listener
    for (size_t i = 0; i < kMaxUnproved; ++i) {
      ASSIGN_OR_RETURN(UniqueFd fd, AcceptTcp(listener_.fd.get()));
      if (fd.get() < 0) break;
      if (unproved_.size() == kMaxUnproved) unproved_.erase(unproved_.begin()), ++refused_;
      UnprovedPeer& peer = unproved_.emplace_back();
      peer.fd = std::move(fd);
      peer.deadline = RunningNow() + kProofPatience;
    }
    return absl::OkStatus();
  }

  bool Wanted(const TcpHello& hello) {
    return hello.magic == kTcpMagic && hello.to == options_.rank && hello.from > options_.rank &&
           hello.from < options_.world_size && hello.world_size == options_.world_size &&
           hello.channel >= 0 && hello.channel < kTcpChannels && Place(hello.from, hello.channel).get() < 0;
  }

  // A peer that does not behave as a rank is dropped, and the group goes on waiting.
  void Advance(UnprovedPeer* peer) {
    if (!TryAdvance(peer)) {
      peer->fd = UniqueFd();
      ++refused_;
    }
  }

  bool TryAdvance(UnprovedPeer* peer) {
    if (RunningNow() >= peer->deadline) return false;
    if (!peer->greeted) {
      const absl::StatusOr<bool> complete = peer->inbox.Fill(peer->fd.get(), sizeof(TcpHello));
      if (!complete.ok()) return false;
      if (!*complete) return true;
      peer->hello = peer->inbox.Take<TcpHello>();
      if (!Wanted(peer->hello)) return false;
      peer->nonce = TcpSecret::NewNonce();
      const TcpChallenge challenge = {peer->nonce, secret_.ChallengeMac(peer->hello, peer->nonce)};
      if (!SendMessage(peer->fd.get(), challenge).ok()) return false;
      peer->greeted = true;
    }
    const absl::StatusOr<bool> complete = peer->inbox.Fill(peer->fd.get(), sizeof(TcpProof));
    if (!complete.ok()) return false;
    if (!*complete) return true;
    const auto proof = peer->inbox.Take<TcpProof>();
    if (!Wanted(peer->hello) ||  // a second connection may have taken the place meanwhile
        !TcpSecret::Same(proof.mac, secret_.ProofMac(peer->hello, peer->nonce))) {
      return false;
    }
    return Keep(peer->hello.from, peer->hello.channel, std::exchange(peer->fd, UniqueFd())).ok();
  }

  void DropRefused() {
    unproved_.erase(std::remove_if(unproved_.begin(), unproved_.end(),
                                   [](const UnprovedPeer& peer) { return peer.fd.get() < 0; }),
                    unproved_.end());
  }

  std::string Name(int rank) const {
    return absl::StrCat("group ", options_.group_name, ": rank ", NumberOf(options_, rank), " at ",
                        options_.rank_addresses[rank]);
  }
  absl::Status Gone(int rank) const {
    return absl::UnavailableError(absl::StrCat(Name(rank), " went away while the group was forming"));
  }
  absl::Status Missing() const {
    std::vector<int> missing;
    for (int r = 0; r < options_.world_size; ++r) {
      const bool here = peers_[r].data.get() >= 0 && peers_[r].notices.get() >= 0;
      if (r != options_.rank && !here) missing.push_back(NumberOf(options_, r));
    }
    return absl::DeadlineExceededError(absl::StrCat(
        "group ", options_.group_name, ": no sign of rank ", absl::StrJoin(missing, ", "), " within ",
        absl::FormatDuration(*options_.connect_timeout), "; connections refused: ", refused_));
  }

  const GroupOptions& options_;
  const TcpListener listener_;
  const TcpSecret secret_;
  const WaitLimit& limit_;
  std::vector<TcpPeer> peers_;
  std::vector<Dial> dials_;
  std::vector<UnprovedPeer> unproved_;
  int64_t refused_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<TcpPeer>> MeetOverTcp(const GroupOptions& options, TcpListener listener,
                                                 const WaitLimit& limit) {
  return Meeting(options, std::move(listener), limit).Meet();
}

}  // namespace somnus
