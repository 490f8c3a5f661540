#pragma once
// The options of the cluster's trust (cluster_trust.h): flags, and the secret from its file or from the
// environment. Values; thread safe.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
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

}  // namespace somnus
