#pragma once
// ClusterService on a listener of its own, where workers register and send heartbeats: a Unix socket in a
// private directory for local workers, else a TCP address. Calls of strangers are refused (ClusterTrust).
//
// Ownership: owns the server, the socket's directory where the server has made it, and a thread that watches
// heartbeats. Thread safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/membership/membership.h"
#include "proto/cluster_trust.h"

namespace somnus {

struct ClusterServerOptions {
  // "host:port" or "unix:/path" in a private directory; empty: a Unix socket in a new private directory.
  std::string address;
  ClusterTrust trust;  // by default every call passes
  MembershipOptions membership;
  // Workers are told to send four heartbeats in hang_timeout where that is more often.
  absl::Duration heartbeat_interval = absl::Milliseconds(500);
  MonotonicClock now = MonotonicNow;
  std::string log_name;  // "NAME: ", at the front of log lines; empty: none
};

class ClusterServer {
 public:
  // Unavailable names an address that cannot be bound; FailedPrecondition: strangers could reach the address.
  static absl::StatusOr<std::unique_ptr<ClusterServer>> Start(const ClusterServerOptions& options);
  virtual ~ClusterServer() = default;

  // The address that workers dial: "unix:/path" or "host:port", with the port that was bound.
  virtual const std::string& address() const = 0;
  // WaitForGroup, Recheck and the following calls are Membership's.
  virtual absl::StatusOr<std::vector<v1::RegisterRequest>> WaitForGroup(
      absl::Duration timeout, const Membership::StopCondition& stop = nullptr) = 0;
  virtual void Recheck() = 0;
  virtual void Interrupt(const absl::Status& reason) = 0;
  virtual void Reopen(int32_t rank) = 0;
  virtual bool IsTaken(int32_t rank) const = 0;
  virtual std::vector<std::optional<MemberStatus>> Members() const = 0;
  // `callback` is called on the watching thread for every member with a rank that falls silent, once for each
  // worker, also for members that are silent already. The callback must not block, nor call OnSilence or
  // OnStall. An empty function removes the callback: no callback runs afterwards.
  virtual void OnSilence(std::function<void(const SilentMember&)> callback) = 0;
  // `callback` is called on the watching thread whenever the result of Membership::CheckProgress has changed:
  // a rank hangs in a step, or (ok) no rank hangs any longer. The rest is as with OnSilence.
  virtual void OnStall(std::function<void(const absl::Status&)> callback) = 0;
};

}  // namespace somnus
