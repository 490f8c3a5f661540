#include "proto/cluster_trust_options.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/small_file.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr char kSecretFileFlag[] = "--cluster-secret-file";
constexpr size_t kMaxSecretBytes = 4096;
constexpr size_t kMaxSecretFileBytes = kMaxSecretBytes + 2;  // with the end of a line

absl::Status CheckSecret(absl::string_view source, const std::string& secret) {
  if (secret.size() >= kMinSecretBytes && secret.size() <= kMaxSecretBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(source, ": the secret must have ", kMinSecretBytes, " to ",
                                                 kMaxSecretBytes,
                                                 " bytes, such as `openssl rand -hex 32` prints"));
}

absl::StatusOr<std::string> ReadSecretFile(const std::string& path) {
  absl::StatusOr<std::string> secret = ReadPrivateFile(path, kMaxSecretFileBytes);
  if (!secret.ok())
    return absl::InvalidArgumentError(absl::StrCat(kSecretFileFlag, ": ", secret.status().message()));
  absl::StripTrailingAsciiWhitespace(&*secret);
  return secret;
}

}  // namespace

FlagGroup ClusterTrustFlags(ClusterTrustOptions* o) {
  return {
      "Trust between coordinator and workers",
      {
          Flag::Text(
              "cluster-secret-file", &o->secret_file,
              "file with the cluster's secret, which others may not read; over TCP it makes the connections "
              "of the cluster encrypted and mutually authenticated, without certificates")
              .Shows("PATH")
              .Default(kClusterSecretVariable),
          Flag::Text("cluster-cert", &o->tls.certificate,
                     "this process's certificate in PEM; certificates are read again when they change")
              .Shows("PATH"),
          Flag::Text("cluster-key", &o->tls.key, "its private key").Shows("PATH"),
          Flag::Text("cluster-ca", &o->tls.authority,
                     "the cluster's own authority: whoever has a certificate of it is a member")
              .Shows("PATH"),
          Flag::Switch(
              "insecure-cluster", &o->insecure,
              "listen beyond loopback with neither secret nor certificate: whoever reaches the port is "
              "obeyed"),
          Flag::Int(
              "max-handshakes", &o->max_handshakes, 1, 1 << 20,
              "connections to a TCP port of the cluster that may be open at once before they have shown "
              "that they belong to it; a further one closes the oldest"),
      }};
}

absl::Status ReadClusterSecret(const Environment& environment, ClusterTrustOptions* options) {
  if (!options->secret_file.empty()) {
    ASSIGN_OR_RETURN(options->secret, ReadSecretFile(options->secret_file));
    return CheckSecret(kSecretFileFlag, options->secret);
  }
  const auto found = environment.find(kClusterSecretVariable);
  if (found == environment.end() || found->second.empty()) return absl::OkStatus();
  options->secret = found->second;
  return CheckSecret(kClusterSecretVariable, options->secret);
}

}  // namespace somnus
