// Substitutes for the parts of the product that only a real machine has: the log, the process table, the
// program, directories, certificates, and NCCL, which ranks on CPUs do not use.

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/build_id.h"
#include "base/log.h"
#include "base/running_clock.h"
#include "base/socket_dir.h"
#include "coordinator/engine/caller.h"
#include "coordinator/membership/process_state.h"
#include "proto/cluster_trust.h"
#include "proto/handshake.h"
#include "tests/simulation/site.h"
#include "tests/simulation/world.h"
#include "worker/comm/nccl_api.h"
#include "worker/comm/tcp_socket.h"

namespace somnus {

void Log(LogLevel level, fmt::string_view format, fmt::format_args args) {
  simulation::World* world = simulation::World::current();
  if (world != nullptr && world->verbose()) world->Log(fmt::vformat(format, args));
}

// A message with this text is the same in every program that runs a seed.
const std::string& BuildId() {
  static const std::string* const id = new std::string("simulation");
  return *id;
}
absl::StatusOr<std::string> BuildIdOf(const std::string&) { return BuildId(); }

// A thread's caller. All fibers share the host thread, whose thread_local variables belong to no fiber, and
// outlive a seed.
CallerScope::CallerScope(Caller caller)
    : before_(std::exchange(simulation::Site::current().CallerOfThread(),
                            std::make_shared<const Caller>(std::move(caller)))) {}
CallerScope::~CallerScope() { simulation::Site::current().CallerOfThread() = std::move(before_); }
std::shared_ptr<const Caller> CurrentCaller() { return simulation::Site::current().CallerOfThread(); }
Caller BegunCaller() {
  const std::shared_ptr<const Caller> current = CurrentCaller();
  return {.name = current == nullptr ? "" : current->name, .has_left = [] { return false; }};
}
absl::Status CheckCaller() {
  const std::shared_ptr<const Caller> current = CurrentCaller();
  return current != nullptr && current->has_left() ? absl::CancelledError(kAbandoned) : absl::OkStatus();
}

// No process of the simulation stands still without everybody's knowing.
MonotonicTime RunningNow() { return MonotonicNow(); }
absl::Duration StoodStill() { return absl::ZeroDuration(); }

absl::Status ExplainHandshake(const absl::Status& status) { return status; }

std::string WhyNotRunning(pid_t) { return ""; }

// Nothing listens in the directory: addresses are names. The groups of several replicas have separate
// directories.
absl::StatusOr<SocketDir> SocketDir::Create(const std::string& parent) {
  simulation::Site& site = simulation::Site::current();
  if (site.num_replicas == 1 && site.num_models == 1) return SocketDir(parent, -1);
  return SocketDir(absl::StrCat(parent, "/", ++site.num_socket_dirs), -1);
}
SocketDir::SocketDir(SocketDir&& other) noexcept = default;
SocketDir::~SocketDir() = default;

absl::StatusOr<ClusterTrust> ClusterTrust::Create(const ClusterTrustOptions&) { return ClusterTrust(); }
std::shared_ptr<grpc::ServerCredentials> ClusterTrust::Listener(const std::string&) const { return nullptr; }
std::shared_ptr<grpc::ChannelCredentials> ClusterTrust::Dialer(const std::string&) const { return nullptr; }
absl::Status ClusterTrust::CheckListen(const std::string&) const { return absl::OkStatus(); }

absl::StatusOr<TcpListener> ListenOnTcp(const std::string&) {
  return absl::UnimplementedError("all ranks are on one host");
}
absl::StatusOr<const NcclApi*> NcclApi::Load() { return absl::UnavailableError("there is no GPU"); }
absl::StatusOr<std::string> MakeNcclUniqueId(const NcclApi&) {
  return absl::UnavailableError("there is no GPU");
}

}  // namespace somnus
