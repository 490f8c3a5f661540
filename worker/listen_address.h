#pragma once
// Where a worker listens, so that its coordinator reaches it and as few others as possible.

#include <string>

#include "absl/status/statusor.h"

namespace somnus {

// Holds what to bind and what must be removed afterwards: the destructor removes the socket, and its
// directory where that was made for it.
class ListenAddress {
 public:
  // `coordinator`: "unix:/path" or "host:port". `listen`: the user's choice in the same forms, or "".
  // For a Unix coordinator: a socket beside its own, or in a private directory where that cannot be written.
  // Over TCP: a free port on the one local address that the way to the coordinator leads over.
  static absl::StatusOr<ListenAddress> Choose(const std::string& coordinator, const std::string& listen);
  ~ListenAddress();
  ListenAddress(ListenAddress&& other) noexcept;
  ListenAddress& operator=(ListenAddress&&) = delete;

  // A socket beside this one, whose name goes on with `suffix`, or a free port of the same address.
  absl::StatusOr<ListenAddress> Beside(const std::string& suffix) const;

  const std::string& bind() const { return bind_; }
  // The address for the coordinator to dial once the server has bound `port` (ignored for a socket). `host`:
  // "" for the bound host.
  std::string Advertised(int port, const std::string& host) const;

 private:
  ListenAddress() = default;
  // Sets bind_ from socket_path_.
  absl::Status BindSocket();

  std::string bind_;
  std::string socket_path_;  // to remove; "" for TCP
  std::string directory_;    // to remove; "" when it is not ours
};

}  // namespace somnus
