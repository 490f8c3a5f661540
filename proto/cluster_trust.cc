#include "proto/cluster_trust.h"

#include <arpa/inet.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/crypto.h>

#include <map>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/host_port.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr char kTokenKey[] = "somnus-cluster-token";
constexpr TlsFlagNames kTlsFlags = {"--cluster-cert", "--cluster-key", "--cluster-ca"};

bool IsUnix(const std::string& address) { return absl::StartsWith(address, "unix:"); }

bool IsLoopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
  }
  if (address.sa_family != AF_INET6) return false;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

// Whether `address`, "host:port", can be reached from this host alone. A name must stand for loopback
// addresses only.
bool IsLoopback(const std::string& address) {
  const std::optional<HostPort> parts = SplitHostPort(address);
  if (!parts.has_value()) return false;
  addrinfo* found = nullptr;
  if (getaddrinfo(parts->host.c_str(), nullptr, nullptr, &found) != 0) return false;
  const auto free_found = absl::MakeCleanup([&] { freeaddrinfo(found); });
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    if (!IsLoopback(*info->ai_addr)) return false;
  }
  return true;
}

// Lets only calls with the token pass, and takes the token out of the call's metadata, where it is under
// `key`. A refused caller learns from `refusal` what the call lacks.
class TokenCheck : public grpc::AuthMetadataProcessor {
 public:
  TokenCheck(const char* key, std::string token, const char* refusal)
      : key_(key), token_(std::move(token)), refusal_(refusal) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext*, OutputMetadata* consumed,
                       OutputMetadata*) override {
    const auto range = metadata.equal_range(key_);
    if (range.first == range.second || std::next(range.first) != range.second ||
        !IsToken(range.first->second)) {
      return {grpc::StatusCode::UNAUTHENTICATED, refusal_};
    }
    consumed->emplace(key_, token_);
    return grpc::Status::OK;
  }

 private:
  // Takes the same time for any `given`, so that a token cannot be guessed byte by byte.
  bool IsToken(grpc::string_ref given) const {
    return given.size() == token_.size() && CRYPTO_memcmp(given.data(), token_.data(), token_.size()) == 0;
  }

  const char* const key_;
  const std::string token_;
  const char* const refusal_;
};

// Adds the token to every call.
class TokenSender : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenSender(std::string token) : token_(std::move(token)) {}

  bool IsBlocking() const override { return false; }
  const char* GetType() const override { return "somnus"; }

  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    metadata->emplace(kTokenKey, token_);
    return grpc::Status::OK;
  }

 private:
  const std::string token_;
};

}  // namespace

absl::StatusOr<ClusterTrust> ClusterTrust::Create(const ClusterTrustOptions& options) {
  ClusterTrust trust;
  trust.insecure_ = options.insecure;
  trust.max_handshakes_ = options.max_handshakes;
  if (!options.secret.empty()) trust.token_ = CallToken(options.secret);
  RETURN_IF_ERROR(CheckTlsFiles(options.tls, kTlsFlags));
  if (!options.tls.certificate.empty()) {
    if (options.tls.authority.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(kTlsFlags.authority, ": is needed beside --cluster-cert"));
    }
    trust.identity_ = WatchTlsFiles(options.tls, options.reload_interval);
  } else if (!options.secret.empty()) {
    ASSIGN_OR_RETURN(const TlsIdentity identity, IdentityFromSecret(options.secret));
    trust.identity_ = FixedTlsIdentity(identity);
  }
  return trust;
}

std::shared_ptr<grpc::ServerCredentials> ClusterTrust::Listener(const std::string& address) const {
  std::shared_ptr<grpc::ServerCredentials> credentials;
  if (!IsUnix(address) && identity_ != nullptr) {
    credentials = TlsListener(identity_, /*require_client=*/true);
  } else if (IsUnix(address) && !token_.empty()) {
    credentials = grpc::experimental::LocalServerCredentials(UDS);
  } else {
    return grpc::InsecureServerCredentials();
  }
  if (token_.empty()) return credentials;
  credentials->SetAuthMetadataProcessor(
      std::make_shared<TokenCheck>(kTokenKey, token_, "the caller does not know the secret of this cluster"));
  return credentials;
}

std::shared_ptr<grpc::ChannelCredentials> ClusterTrust::Dialer(const std::string& address) const {
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  if (!IsUnix(address) && identity_ != nullptr) {
    credentials = TlsDialer(identity_);
  } else if (IsUnix(address) && !token_.empty()) {
    credentials = grpc::experimental::LocalCredentials(UDS);
  } else {
    return grpc::InsecureChannelCredentials();
  }
  if (token_.empty()) return credentials;
  return grpc::CompositeChannelCredentials(
      credentials, grpc::MetadataCredentialsFromPlugin(std::make_unique<TokenSender>(token_)));
}

absl::Status ClusterTrust::CheckListen(const std::string& address) const {
  if (IsUnix(address) || identity_ != nullptr || IsLoopback(address)) return absl::OkStatus();
  if (insecure_) {
    LogWarning("--insecure-cluster: whoever reaches {} is obeyed", address);
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("whoever reaches ", address,
                   " would be obeyed: give every process of the cluster the same --cluster-secret-file, or "
                   "certificates by --cluster-cert, --cluster-key and --cluster-ca, or say "
                   "--insecure-cluster"));
}

std::shared_ptr<grpc::ServerCredentials> UpdatePortListener(const std::string& address,
                                                            const std::string& token,
                                                            const CertificateSource& identity) {
  const std::shared_ptr<grpc::ServerCredentials> credentials =
      IsUnix(address) ? grpc::experimental::LocalServerCredentials(UDS)
                      : TlsListener(identity, /*require_client=*/false);
  credentials->SetAuthMetadataProcessor(std::make_shared<TokenCheck>(
      kUpdateTokenKey, token, "the caller does not have the token of the update that is under way"));
  return credentials;
}

}  // namespace somnus
