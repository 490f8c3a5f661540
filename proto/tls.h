#pragma once
// TLS for gRPC: who shows which certificate, and who must. Values; thread safe.

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/cluster_keys.h"

namespace somnus {

// PEM files: a certificate (with what its authority needs between), its private key, and the authorities
// whose certificates the other side may have. Empty: none.
struct TlsFiles {
  std::string certificate;
  std::string key;
  std::string authority;
};

// The flags that name them, for errors.
struct TlsFlagNames {
  const char* certificate;
  const char* key;
  const char* authority;
};

// InvalidArgument names the flag whose file cannot be read or holds no PEM of its kind, that is missing
// beside another one, or whose key belongs to another certificate. Without an authority nothing is required
// of one.
absl::Status CheckTlsFiles(const TlsFiles& files, const TlsFlagNames& names);

using CertificateSource = std::shared_ptr<grpc::experimental::CertificateProviderInterface>;

// Reads `files` again every `interval` (whole seconds, at least 1): new connections use what they hold then.
// Files that do not fit each other while they are being replaced are passed over.
CertificateSource WatchTlsFiles(const TlsFiles& files, absl::Duration interval);
CertificateSource FixedTlsIdentity(const TlsIdentity& identity);

// Of a listener; with `require_client` clients must show a certificate of the source's authority.
std::shared_ptr<grpc::ServerCredentials> TlsListener(const CertificateSource& source, bool require_client);
// Of a channel that shows the source's certificate to a server that must show one of the source's authority.
// Names are not compared: the authority signs its cluster's members alone.
std::shared_ptr<grpc::ChannelCredentials> TlsDialer(const CertificateSource& source);

}  // namespace somnus
