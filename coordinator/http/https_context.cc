#include "coordinator/http/https_context.h"

#include <openssl/ssl.h>

#include <boost/asio/buffer.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/small_file.h"
#include "base/status_macros.h"

namespace somnus {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
// The ciphers of TLS 1.2; all ciphers of 1.3 are good.
constexpr char kCiphers[] = "ECDHE+AESGCM:ECDHE+CHACHA20";
constexpr unsigned char kAlpnName[] = "\x08http/1.1";
constexpr unsigned char kSessionContext[] = "somnus";

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  ASSIGN_OR_RETURN(std::string bytes, ReadSmallFile(path, kMaxFileBytes));
  if (bytes.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " is empty"));
  return bytes;
}

// A client that speaks only a different protocol, such as HTTP/2, is refused within the handshake. A client
// that names no protocol means HTTP/1.1.
int SelectProtocol(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* in,
                   unsigned int in_size, void*) {
  unsigned char* selected = nullptr;
  const int result =
      SSL_select_next_proto(&selected, out_size, kAlpnName, sizeof(kAlpnName) - 1, in, in_size);
  *out = selected;
  return result == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

absl::Status Bad(absl::string_view what, const error_code& ec) {
  return absl::InvalidArgumentError(absl::StrCat("the ", what, " is of no use: ", ec.message()));
}

void SetProtocol(SSL_CTX* context) {
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_cipher_list(context, kCiphers);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_alpn_select_cb(context, SelectProtocol, nullptr);
  // Clients that resume a session bring the session's ticket; nothing is kept here. Tickets of an earlier
  // certificate or authority are of no use, because each context has ticket keys of its own.
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_session_id_context(context, kSessionContext, sizeof(kSessionContext) - 1);
}

}  // namespace

absl::StatusOr<HttpsContext::Pem> HttpsContext::Read(const TlsFiles& files) {
  Pem pem;
  ASSIGN_OR_RETURN(pem.certificate, ReadFile(files.certificate));
  ASSIGN_OR_RETURN(pem.key, ReadFile(files.key));
  if (files.authority.empty()) return pem;
  ASSIGN_OR_RETURN(pem.authority, ReadFile(files.authority));
  return pem;
}

absl::StatusOr<std::shared_ptr<ssl::context>> HttpsContext::Make(const Pem& pem) {
  const auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  SetProtocol(context->native_handle());
  error_code ec;
  // A key with a passphrase counts as none: there is nobody to ask.
  context->set_password_callback([](size_t, ssl::context::password_purpose) { return std::string(); }, ec);
  context->use_certificate_chain(boost::asio::buffer(pem.certificate), ec);
  if (ec) return Bad("certificate", ec);
  context->use_private_key(boost::asio::buffer(pem.key), ssl::context::pem, ec);
  if (ec) return Bad("private key", ec);
  if (SSL_CTX_check_private_key(context->native_handle()) != 1)
    return absl::InvalidArgumentError("the private key is not the certificate's");
  if (pem.authority.empty()) return context;
  context->add_certificate_authority(boost::asio::buffer(pem.authority), ec);
  if (ec) return Bad("authority", ec);
  context->set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert, ec);
  return context;
}

absl::StatusOr<std::unique_ptr<HttpsContext>> HttpsContext::Create(const TlsFiles& files,
                                                                   absl::Duration reload_interval) {
  ASSIGN_OR_RETURN(Pem pem, Read(files));
  ASSIGN_OR_RETURN(std::shared_ptr<ssl::context> context, Make(pem));
  std::unique_ptr<HttpsContext> made(new HttpsContext(files, std::move(pem), std::move(context)));
  made->thread_ = std::thread([self = made.get(), reload_interval] {
    while (!self->stop_.WaitFor(reload_interval)) self->Reload();
  });
  return made;
}

HttpsContext::HttpsContext(TlsFiles files, Pem pem, std::shared_ptr<ssl::context> current)
    : files_(std::move(files)), seen_(std::move(pem)), current_(std::move(current)) {}

HttpsContext::~HttpsContext() {
  stop_.Stop();
  thread_.join();
}

void HttpsContext::Reload() {
  const absl::StatusOr<Pem> pem = Read(files_);
  Pem now = pem.ok() ? *pem : Pem();
  if (now == seen_) return;  // also when the contents were of no use: one warning is enough
  seen_ = std::move(now);
  const absl::StatusOr<std::shared_ptr<ssl::context>> context = pem.ok() ? Make(seen_) : pem.status();
  if (!context.ok()) {
    LogWarning("{} and its key cannot be used, the earlier ones stay: {}", files_.certificate,
               std::string(context.status().message()));
    return;
  }
  LogInfo("new connections show the certificate that {} holds now", files_.certificate);
  absl::MutexLock lock(&mutex_);
  current_ = *context;
}

std::shared_ptr<ssl::context> HttpsContext::Current() const {
  absl::MutexLock lock(&mutex_);
  return current_;
}

}  // namespace somnus
