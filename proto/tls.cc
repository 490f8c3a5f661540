#include "proto/tls.h"

#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace somnus {
namespace {

namespace tls = grpc::experimental;

}  // namespace

CertificateSource WatchTlsFiles(const TlsFiles& files, absl::Duration interval) {
  const auto seconds = static_cast<unsigned>(std::max<int64_t>(1, absl::ToInt64Seconds(interval)));
  return std::make_shared<tls::FileWatcherCertificateProvider>(files.key, files.certificate, files.authority,
                                                               seconds);
}

CertificateSource FixedTlsIdentity(const TlsIdentity& identity) {
  const std::vector<tls::IdentityKeyCertPair> pairs = {{identity.key, identity.certificate}};
  return std::make_shared<tls::StaticDataCertificateProvider>(identity.authority, pairs);
}

std::shared_ptr<grpc::ServerCredentials> TlsListener(const CertificateSource& source, bool require_client) {
  tls::TlsServerCredentialsOptions options(source);
  options.watch_identity_key_cert_pairs();
  if (require_client) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  options.set_certificate_verifier(std::make_shared<tls::NoOpCertificateVerifier>());
  return tls::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> TlsDialer(const CertificateSource& source) {
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(source);
  options.watch_identity_key_cert_pairs();
  options.watch_root_certs();
  options.set_verify_server_certs(true);
  options.set_check_call_host(false);
  options.set_certificate_verifier(std::make_shared<tls::NoOpCertificateVerifier>());
  return tls::TlsCredentials(options);
}

}  // namespace somnus
