#pragma once
// Non-blocking TCP sockets, of which a group of ranks on several hosts is made.

#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/comm/socket_io.h"

namespace somnus {

// An open port, where the other ranks of a group connect.
struct TcpListener {
  UniqueFd fd;
  int port = 0;
};

// Opens a free port on the local address that `host` (a name or an address) is, or on all addresses when no
// local address is called so, as behind a translated address. InvalidArgument: the name is unknown.
absl::StatusOr<TcpListener> ListenOnTcp(const std::string& host);

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
};

// The addresses of "host:port" or "[v6]:port", never none. A name is looked up, which may block.
// InvalidArgument names `address`.
absl::StatusOr<std::vector<SocketAddress>> ResolveTcp(const std::string& address);

// A socket with a connection under way: becomes writable once the connection is there, or has failed.
absl::StatusOr<UniqueFd> StartConnect(const SocketAddress& address);
// Ok when the connection that StartConnect began is there.
absl::Status FinishConnect(int fd);

// The next connection; none (fd -1) when nobody waits.
absl::StatusOr<UniqueFd> AcceptTcp(int listener);

// Sends written data at once, and lets the kernel probe a connection on which nothing comes: the connection
// fails when nothing was answered for about `unreachable`. `while_sending`: also when sent data were not
// acknowledged for that long; not for connections with a peer that may be slow to read.
absl::Status SetUpConnection(int fd, absl::Duration unreachable, bool while_sending);

}  // namespace somnus
