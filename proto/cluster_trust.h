#pragma once
// The secret and the certificates by which the coordinator and the workers of one cluster know each other.
// Both sides of every connection between coordinator and workers take their credentials from here, so that no
// call of a stranger reaches a handler.
//
//   Unix socket   Its directory, or its mode, lets nobody else connect. Where there is a secret, every call
//                 carries the token that follows from it.
//   TCP           TLS, with a certificate of the cluster's authority on both sides: from files, or else
//                 made from the secret. The token is carried, too. A recorded connection cannot be replayed.
//   neither       Only on loopback, unless the user insists: see CheckListen.
//
// docs/security.md says why. Values; thread safe.

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cluster_trust_options.h"
#include "proto/tls.h"

namespace somnus {

class ClusterTrust {
 public:
  // Knows nobody: every connection is plain, every call passes.
  ClusterTrust() = default;
  // InvalidArgument names the flag of a file that is of no use.
  static absl::StatusOr<ClusterTrust> Create(const ClusterTrustOptions& options);

  // `address` is "unix:/path" or "host:port".
  std::shared_ptr<grpc::ServerCredentials> Listener(const std::string& address) const;
  std::shared_ptr<grpc::ChannelCredentials> Dialer(const std::string& address) const;
  // FailedPrecondition: anybody who reaches `address`, which is not loopback's, could command the process
  // that listens there.
  absl::Status CheckListen(const std::string& address) const;
  int max_handshakes() const { return max_handshakes_; }  // for GrpcListener::Start

 private:
  std::string token_;           // of every call; empty: none
  CertificateSource identity_;  // over TCP; null: none
  bool insecure_ = false;
  int max_handshakes_ = kMaxHandshakes;
};

// For a direct update (proto/weights.proto): the metadata in which a call has the update's token, and the
// name for which workers show certificates.
inline constexpr char kUpdateTokenKey[] = "somnus-update-token";
inline constexpr char kUpdatePortName[] = "somnus-update-port";

// The credentials of a worker's update port, which is open to callers outside the cluster: only calls with
// the token pass. Over TCP by TLS, with this identity.
std::shared_ptr<grpc::ServerCredentials> UpdatePortListener(const std::string& address,
                                                            const std::string& token,
                                                            const CertificateSource& identity);

}  // namespace somnus
