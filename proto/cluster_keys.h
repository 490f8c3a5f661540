#pragma once
// What the processes of a cluster derive from its secret, so that the secret itself is never sent: the keys
// by which they know each other over TLS, and the token that every call carries.

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

// Returns a new certificate of the authority whose private key is derived from `secret`. Whoever knows the
// secret has the same authority; nobody else can sign a certificate of it. It is valid at any time of any
// wall clock. Internal: the system has no randomness or memory.
absl::StatusOr<TlsIdentity> IdentityFromSecret(absl::string_view secret);

// Returns a certificate for `name`, a DNS name, that is its own authority: whoever was handed it knows who
// shows it. Its key is of P-256, which every TLS library has; it is valid as long as the one above. Internal:
// likewise.
absl::StatusOr<TlsIdentity> SelfSignedIdentity(const std::string& name);

// Returns the token, 64 hexadecimal digits, by which a call shows that its sender knows `secret`. It tells
// nothing about the secret, but whoever sees it can send it, too: it belongs in an encrypted or private
// connection.
std::string CallToken(absl::string_view secret);

}  // namespace somnus
