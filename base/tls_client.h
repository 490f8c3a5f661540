#pragma once
// The client's side of TLS over a TCP socket that the caller has connected. Waiting is the caller's task: no
// call here waits on a non-blocking socket. A broken connection raises no SIGPIPE. TLS 1.2 or later. Thread
// compatible.

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace somnus {

struct TlsClientOptions {
  // The name or the numeric address that the server's certificate must be for.
  std::string host;
  std::string authority;  // PEM file of the authorities that may have signed the server's certificate; empty:
                          // the system's
  // PEM files, shown to a server that asks for a certificate; empty: none.
  std::string certificate;
  std::string key;
  bool verify = true;  // false: any peer counts as the server. For questions without secrets on this host.
};

class TlsClient {
 public:
  // The result of an attempt. Where `wait_for` (POLLIN or POLLOUT) is not 0, nothing was done: the attempt is
  // to be made again, with the same bytes, when the socket is ready for that.
  struct Progress {
    size_t bytes = 0;
    bool at_end = false;  // of Read: the server has ended the connection in order
    short wait_for = 0;
  };

  // Borrows `fd`. InvalidArgument names the file that is of no use.
  static absl::StatusOr<std::unique_ptr<TlsClient>> Create(int fd, const TlsClientOptions& options);
  virtual ~TlsClient() = default;

  // First, until wait_for is 0. Unauthenticated: the server's certificate is not to be trusted. Unavailable:
  // the server does not speak TLS, or the connection broke.
  virtual absl::StatusOr<Progress> Handshake() = 0;
  // DataLoss: the connection broke. PermissionDenied: the server wants a different certificate of this
  // client, or any certificate; with TLS 1.3 a client learns that only here.
  virtual absl::StatusOr<Progress> Read(char* buffer, size_t size) = 0;
  virtual absl::StatusOr<Progress> Write(absl::string_view bytes) = 0;
};

}  // namespace somnus
