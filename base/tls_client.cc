#include "base/tls_client.h"

#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/free_by.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

using ContextPtr = std::unique_ptr<SSL_CTX, FreeBy<SSL_CTX_free>>;
using SslPtr = std::unique_ptr<SSL, FreeBy<SSL_free>>;

// OpenSSL's own socket BIO writes without MSG_NOSIGNAL.
int FdOf(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

int WriteSocket(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = send(FdOf(bio), bytes, static_cast<size_t>(size), MSG_NOSIGNAL);
  if (n < 0 && WouldBlock()) BIO_set_retry_write(bio);
  return static_cast<int>(n);
}

int ReadSocket(BIO* bio, char* buffer, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t n = recv(FdOf(bio), buffer, static_cast<size_t>(size), 0);
  if (n < 0 && WouldBlock()) BIO_set_retry_read(bio);
  if (n == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return static_cast<int>(n);
}

long ControlSocket(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

BIO* NewSocketBio(int fd) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket without SIGPIPE");
    SOMNUS_CHECK(made != nullptr);
    BIO_meth_set_write(made, WriteSocket);
    BIO_meth_set_read(made, ReadSocket);
    BIO_meth_set_ctrl(made, ControlSocket);
    return made;
  }();
  BIO* bio = BIO_new(method);
  SOMNUS_CHECK(bio != nullptr);
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  BIO_set_init(bio, 1);
  return bio;
}

absl::Status BadFile(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, " is not ", what, " in PEM that can be read"));
}

// A key with a passphrase counts as none.
int NoPassphrase(char*, int, int, void*) { return 0; }

absl::StatusOr<ContextPtr> MakeContext(const TlsClientOptions& options) {
  ContextPtr context(SSL_CTX_new(TLS_client_method()));
  SOMNUS_CHECK(context != nullptr);
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_default_passwd_cb(context.get(), NoPassphrase);
  if (options.authority.empty()) {
    SSL_CTX_set_default_verify_paths(context.get());
  } else if (SSL_CTX_load_verify_file(context.get(), options.authority.c_str()) != 1) {
    return BadFile(options.authority, "a certificate");
  }
  if (options.certificate.empty()) return context;
  if (SSL_CTX_use_certificate_chain_file(context.get(), options.certificate.c_str()) != 1)
    return BadFile(options.certificate, "a certificate");
  if (SSL_CTX_use_PrivateKey_file(context.get(), options.key.c_str(), SSL_FILETYPE_PEM) != 1)
    return BadFile(options.key, "the certificate's private key, without passphrase,");
  return context;
}

// Whether `reason` is an alert that the server has sent about this client's certificate.
bool IsRefusal(int reason) {
  return reason == SSL_R_TLSV1_ALERT_UNKNOWN_CA || reason == SSL_R_SSLV3_ALERT_BAD_CERTIFICATE ||
         reason == SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED || reason == SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN;
}

class TlsClientImpl : public TlsClient {
 public:
  TlsClientImpl(int fd, const TlsClientOptions& options, ContextPtr context)
      : context_(std::move(context)), ssl_(SSL_new(context_.get())) {
    SOMNUS_CHECK(ssl_ != nullptr);
    BIO* const bio = NewSocketBio(fd);
    SSL_set_bio(ssl_.get(), bio, bio);
    SSL_set_connect_state(ssl_.get());
    SSL_set_mode(ssl_.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), options.host.c_str()) != 1) {
      SSL_set1_host(ssl_.get(), options.host.c_str());
      SSL_set_tlsext_host_name(ssl_.get(), options.host.c_str());
    }
    SSL_set_verify(ssl_.get(), options.verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, nullptr);
  }

  absl::StatusOr<Progress> Handshake() override {
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_.get());
    if (result == 1) return Progress();
    if (const short event = WaitFor(result); event != 0) return Progress{.wait_for = event};
    const long verdict = SSL_get_verify_result(ssl_.get());
    if (verdict != X509_V_OK) {
      return absl::UnauthenticatedError(
          absl::StrCat("the server's certificate is not accepted: ", X509_verify_cert_error_string(verdict)));
    }
    const int reason = ERR_GET_REASON(ERR_peek_error());
    if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST)
      return absl::UnavailableError("it does not speak TLS");
    if (IsRefusal(reason)) return absl::PermissionDeniedError("the server refuses this client's certificate");
    return absl::UnavailableError(absl::StrCat("the TLS handshake failed: ", Reason()));
  }

  absl::StatusOr<Progress> Read(char* buffer, size_t size) override {
    ERR_clear_error();
    const int n = SSL_read(ssl_.get(), buffer, Clamp(size));
    if (n > 0) return Progress{.bytes = static_cast<size_t>(n)};
    if (SSL_get_error(ssl_.get(), n) == SSL_ERROR_ZERO_RETURN) return Progress{.at_end = true};
    return Failed(n);
  }

  absl::StatusOr<Progress> Write(absl::string_view bytes) override {
    ERR_clear_error();
    const int n = SSL_write(ssl_.get(), bytes.data(), Clamp(bytes.size()));
    if (n > 0) return Progress{.bytes = static_cast<size_t>(n)};
    return Failed(n);
  }

 private:
  static int Clamp(size_t size) {
    return static_cast<int>(std::min<size_t>(size, std::numeric_limits<int>::max()));
  }

  // The event to wait for after a failed attempt; 0 when waiting is of no use.
  short WaitFor(int result) const {
    const int error = SSL_get_error(ssl_.get(), result);
    return error == SSL_ERROR_WANT_READ ? POLLIN : error == SSL_ERROR_WANT_WRITE ? POLLOUT : 0;
  }

  absl::StatusOr<Progress> Failed(int result) const {
    if (const short event = WaitFor(result); event != 0) return Progress{.wait_for = event};
    const int reason = ERR_GET_REASON(ERR_peek_error());
    if (reason == SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED)
      return absl::PermissionDeniedError("the server wants this client to show a certificate");
    if (IsRefusal(reason)) return absl::PermissionDeniedError("the server refuses this client's certificate");
    return absl::DataLossError(absl::StrCat("the connection broke: ", Reason()));
  }

  static std::string Reason() {
    const char* reason = ERR_reason_error_string(ERR_peek_error());
    return reason != nullptr ? reason : errno != 0 ? strerror(errno) : "the server has closed it";
  }

  const ContextPtr context_;
  const SslPtr ssl_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TlsClient>> TlsClient::Create(int fd, const TlsClientOptions& options) {
  ASSIGN_OR_RETURN(ContextPtr context, MakeContext(options));
  return std::make_unique<TlsClientImpl>(fd, options, std::move(context));
}

}  // namespace somnus
