#pragma once
// The connections of a complete group on several hosts: rounds, in which every rank sends something to every
// other rank and receives something from every other rank, unless both say that data go one way.

#include <poll.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "worker/comm/group_options.h"
#include "worker/comm/tcp_notices.h"
#include "worker/comm/tcp_rendezvous.h"

namespace somnus {

constexpr int kMaxTcpRanks = 64;

// The data that this rank sends to a peer in a round, and where to put the data from the peer.
struct TcpTransfer {
  const void* send = nullptr;
  int64_t send_bytes = 0;
  void* receive = nullptr;
  int64_t receive_bytes = 0;
  // False: nothing goes that way in the round, and the other rank does not expect anything.
  bool sends = true;
  bool receives = true;
};

struct TcpLinksOptions {
  int rank = 0;
  std::vector<std::string> names;  // of the ranks, for messages
  absl::Duration spin_time;        // before a wait blocks
};

// Used by a single thread, except Abort and Health.
class TcpLinks {
 public:
  TcpLinks(TcpLinksOptions options, std::vector<TcpPeer> peers, UniqueFd wake);

  // Runs a round: `transfers`, by rank; this rank's own is ignored. `call` describes the round, and must be
  // the same on all ranks. Returns when everything was received and sent. Unavailable: a rank died, left, or
  // cannot be reached; Aborted; DeadlineExceeded; Internal: a rank is in a different call. An error is told
  // to all ranks, and every later round returns the error.
  absl::Status Exchange(uint64_t call, const std::vector<TcpTransfer>& transfers, const WaitLimit& limit);

  void Abort(const std::string& reason) { notices_.Fail(absl::AbortedError(reason)).IgnoreError(); }
  absl::Status Health() { return notices_.Health(); }

 private:
  // Goes before the data of every round.
  struct Header {
    uint64_t call = 0;
    uint64_t round = 0;
  };
  struct Link {
    UniqueFd fd;
    TcpTransfer transfer;
    Header received;
    int64_t sent_bytes = 0, received_bytes = 0;  // of this round, with the header
    bool SendsAll() const { return !transfer.sends || sent_bytes == HeaderBytes() + transfer.send_bytes; }
    bool ReceivedAll() const {
      return !transfer.receives || received_bytes == HeaderBytes() + transfer.receive_bytes;
    }
  };
  static constexpr int64_t HeaderBytes() { return sizeof(Header); }

  void StartRound(uint64_t call, const std::vector<TcpTransfer>& transfers);
  // Sends and receives as much as goes at once.
  absl::Status Move(bool* moved, bool* complete);
  absl::StatusOr<int64_t> SendSome(int rank);
  absl::StatusOr<int64_t> ReceiveSome(int rank);
  absl::Status CheckHeader(int rank) const;
  absl::Status Wait(const WaitLimit& limit);
  absl::Status Lost(int rank, const std::string& why) const;
  absl::Status Late(absl::Duration timeout) const;

  const TcpLinksOptions options_;
  TcpNotices notices_;
  std::vector<Link> links_;  // by rank
  Header header_;            // of this round
  std::vector<pollfd> fds_;
};

// InvalidArgument names the option: what CheckGroupOptions checks, addresses, secret or timeout.
absl::Status CheckTcpOptions(const GroupOptions& options);

// Connects the ranks of `options`, which were checked and have a buffer (MeetOverTcp). The other ranks may
// still be connecting to each other at the return.
absl::StatusOr<std::unique_ptr<TcpLinks>> ConnectTcpLinks(const GroupOptions& options, TcpListener listener,
                                                          const WaitLimit& limit);

}  // namespace somnus
