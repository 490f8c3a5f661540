#pragma once
// The processes of a cluster derive two things from its secret, so that the secret itself is never sent: the
// keys by which the processes know each other over TLS, and the token that every call carries.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace somnus {

// A certificate, its private key and the authority that signed it, each as PEM text.
struct TlsIdentity {
  std::string certificate;
  std::string key;
  std::string authority;
};

// Returns a new certificate of the authority whose private key is derived from `secret`. Every process that
// knows the secret has the same authority; nobody else can sign a certificate of this authority. The
// certificate is valid at any time of any wall clock. Internal: the system has no randomness or memory.
absl::StatusOr<TlsIdentity> IdentityFromSecret(absl::string_view secret);

// Returns a certificate for `name`, a DNS name, that is its own authority: a client that was handed the
// certificate knows the server that shows it. The key is of P-256, which every TLS library has; the
// certificate is valid as long as that of IdentityFromSecret. Internal: the system has no randomness or
// memory.
absl::StatusOr<TlsIdentity> SelfSignedIdentity(const std::string& name);

// Returns the token, 64 hexadecimal digits, by which a call shows that its sender knows `secret`. The token
// tells nothing about the secret, but anybody who sees the token can send it, too: the token belongs in an
// encrypted or private connection.
std::string CallToken(absl::string_view secret);

}  // namespace somnus
