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
#include "absl/time/time.h"
#include "base/discovery.h"
#include "base/flags.h"
#include "proto/tls.h"

namespace somnus {

// A secret has at least this many bytes: anybody who can dial a listener could try out short secrets.
inline constexpr size_t kMinSecretBytes = 32;
// The environment variable of the secret, which the coordinator sets for the workers that it starts.
inline constexpr char kClusterSecretVariable[] = "SOMNUS_CLUSTER_SECRET";

// Connections to a TCP port of the cluster that may be without a call at once, unless a flag says otherwise.
// A group of several hundred workers that start together is within the bound.
inline constexpr int32_t kMaxHandshakes = 128;

struct ClusterTrustOptions {
  std::string secret;  // ReadClusterSecret fills it in; empty: none
  std::string secret_file;
  TlsFiles tls;                                        // all three or none
  bool insecure = false;                               // a TCP listener beyond loopback may do without
  absl::Duration reload_interval = absl::Seconds(10);  // of the files in `tls`
  int32_t max_handshakes = kMaxHandshakes;
};

// The flags that coordinator and worker share. Parsing writes to `options`, which is borrowed.
FlagGroup ClusterTrustFlags(ClusterTrustOptions* options);

// Sets `options->secret` from its file, else from the environment. InvalidArgument names the flag or the
// variable: a file that cannot be read, or that users outside its owner and its group may read, or a short
// secret.
absl::Status ReadClusterSecret(const Environment& environment, ClusterTrustOptions* options);

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
