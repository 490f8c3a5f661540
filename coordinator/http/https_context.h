#pragma once
// The server's side of TLS for an HTTP listener: the certificate that connections show. The files are read
// again at intervals, by a thread of this object's own, so that a certificate is replaced without a restart:
// new connections use the present contents of the files, open connections keep the contents of their
// beginning. Files that do not fit each other, as while they are being replaced, are passed over with a
// warning. Thread safe. Internal to coordinator/http.
//
// TLS 1.2 and 1.3, with forward secrecy and authenticated ciphers alone, without renegotiation; by ALPN
// HTTP/1.1 alone.

// Boost 1.74's awaitable.hpp uses std::exchange without including <utility>.
// clang-format off
#include <utility>
// clang-format on

#include <boost/asio/ssl/context.hpp>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "base/tls_files.h"

namespace somnus {

class HttpsContext {
 public:
  // With an authority in `files`, clients must show a certificate of that authority. InvalidArgument: the
  // files cannot be read, or hold no certificate with its key.
  static absl::StatusOr<std::unique_ptr<HttpsContext>> Create(const TlsFiles& files,
                                                              absl::Duration reload_interval);
  ~HttpsContext();
  HttpsContext(const HttpsContext&) = delete;
  HttpsContext& operator=(const HttpsContext&) = delete;

  // The context for a new connection; never null.
  std::shared_ptr<boost::asio::ssl::context> Current() const;

 private:
  // The contents of the three files.
  struct Pem {
    std::string certificate, key, authority;
    bool operator==(const Pem&) const = default;
  };

  HttpsContext(TlsFiles files, Pem pem, std::shared_ptr<boost::asio::ssl::context> current);
  static absl::StatusOr<Pem> Read(const TlsFiles& files);
  static absl::StatusOr<std::shared_ptr<boost::asio::ssl::context>> Make(const Pem& pem);
  void Reload();

  const TlsFiles files_;
  Pem seen_;  // used by the thread alone: the contents at the last look, usable or not
  mutable absl::Mutex mutex_;
  std::shared_ptr<boost::asio::ssl::context> current_ ABSL_GUARDED_BY(mutex_);
  StopSignal stop_;
  std::thread thread_;
};

}  // namespace somnus
