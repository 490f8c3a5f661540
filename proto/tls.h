#pragma once
// TLS for gRPC: who shows which certificate, and who must. Values; thread safe.

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>

#include <memory>

#include "absl/time/time.h"
#include "base/tls_files.h"
#include "proto/cluster_keys.h"

namespace somnus {

using CertificateSource = std::shared_ptr<grpc::experimental::CertificateProviderInterface>;

// Reads `files` again every `interval` (whole seconds, at least 1): new connections use what the files hold
// then. Files that do not fit each other, as in the middle of a replacement, are passed over.
CertificateSource WatchTlsFiles(const TlsFiles& files, absl::Duration interval);
CertificateSource FixedTlsIdentity(const TlsIdentity& identity);

// The credentials of a listener; with `require_client` clients must show a certificate of the source's
// authority.
std::shared_ptr<grpc::ServerCredentials> TlsListener(const CertificateSource& source, bool require_client);
// The credentials of a channel that shows the source's certificate to a server, which must show a certificate
// of the source's authority. Names are not compared: the authority signs only members of its cluster.
std::shared_ptr<grpc::ChannelCredentials> TlsDialer(const CertificateSource& source);

}  // namespace somnus
