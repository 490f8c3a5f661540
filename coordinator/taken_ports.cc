#include "coordinator/taken_ports.h"

#include <errno.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "coordinator/livez_probe.h"

namespace somnus {
namespace {

constexpr absl::Duration kProbeTimeout = absl::Seconds(1);

struct Listener {
  const char* flag;
  const std::string& host;
  int32_t port;
  bool is_http;
  bool tls;
};

// Whether a socket listens at the address. A socket that has just closed does not count, as for the
// listeners.
bool IsTaken(const Listener& listener) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(listener.host.c_str(), absl::StrCat(listener.port).c_str(), &hints, &found) != 0)
    return false;
  const auto free_found = absl::MakeCleanup([&] { freeaddrinfo(found); });
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const auto close_fd = absl::MakeCleanup([&] { close(fd); });
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  return bind(fd, found->ai_addr, found->ai_addrlen) != 0 && errno == EADDRINUSE;
}

}  // namespace

absl::Status CheckPortsAreFree(const Flags& flags) {
  const bool tls = !flags.tls.certificate.empty(), admin_tls = !flags.admin_tls.certificate.empty();
  std::vector<Listener> listeners = {
      {"--port", flags.host, flags.port, true, tls},
      {"--admin-port", flags.admin_host, flags.admin_port, true, admin_tls},
      {"--grpc-port", flags.host, flags.grpc_port, false, tls},
      {"--control-port", flags.admin_host, flags.control_port, false, admin_tls}};
  for (int32_t i = 0; !flags.local_workers && i < flags.data_parallel_size; ++i)
    listeners.push_back(
        {"--cluster-port", flags.cluster_host, OfReplica(flags, i).cluster_port, false, false});
  std::vector<std::string> taken;
  int32_t somnus_port = 0;
  for (const Listener& listener : listeners) {
    if (listener.port == 0 || !IsTaken(listener)) continue;
    taken.push_back(absl::StrCat(listener.flag, " ", listener.port));
    if (somnus_port == 0 && listener.is_http &&
        ProbeLivez(listener.host, listener.port, listener.tls, kProbeTimeout))
      somnus_port = listener.port;
  }
  if (taken.empty()) return absl::OkStatus();
  const std::string who =
      somnus_port == 0
          ? ""
          : absl::StrCat(" (by a Somnus server, it seems: see somnus status --port ", somnus_port, ")");
  return absl::UnavailableError(
      absl::StrCat(absl::StrJoin(taken, ", "), taken.size() > 1 ? " are" : " is", " in use", who,
                   "; another --port moves all that are not given, and --port 0 takes free ones"));
}

}  // namespace somnus
