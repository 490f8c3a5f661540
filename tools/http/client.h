#pragma once
// A small blocking HTTP/1.1 client for the tools, plain or over TLS: one request per connection. Thread safe:
// the only state is the options.

#include <atomic>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/tls_client.h"

namespace somnus {

struct HttpResponse {
  int status = 0;
  std::string body;
};

struct HttpClientOptions {
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string prefix;                   // before every path: "/llm"; empty: none
  std::string api_key;                  // sent as a bearer token when not empty
  std::optional<TlsClientOptions> tls;  // whom to trust; `host` above stands for tls->host; empty: plain HTTP
  absl::Duration connect_timeout = absl::Seconds(5);
  absl::Duration read_timeout = absl::Minutes(10);  // between two arrivals of bytes
};

// The caller's view of a streamed response during its arrival.
struct StreamWatch {
  std::function<void(absl::string_view)> on_event;
  absl::Duration silence = absl::Seconds(2);
  std::function<void()> on_silence;  // called once, when nothing has arrived for `silence`; may be empty
  const std::atomic<bool>* cancel = nullptr;
};

class HttpClient {
 public:
  explicit HttpClient(HttpClientOptions options) : options_(std::move(options)) {}

  // Unavailable: nothing listens there, or nothing that speaks TLS. Unauthenticated: the server's certificate
  // is not to be trusted. PermissionDenied: the server wants a different certificate of this client, or any
  // certificate. DeadlineExceeded: no answer in time. Unimplemented: the server speaks HTTP/2. DataLoss: the
  // answer is cut short or is not HTTP.
  absl::StatusOr<HttpResponse> Get(const std::string& path) const;
  absl::StatusOr<HttpResponse> Post(const std::string& path, const std::string& json) const;
  absl::StatusOr<HttpResponse> Delete(const std::string& path) const;

  // Gives each event's data to watch.on_event while the answer is a 200 event stream; any other answer is
  // returned as a whole. Cancelled once *watch.cancel is true, which is checked after each arrival and each
  // signal, and several times a second.
  absl::StatusOr<HttpResponse> PostStream(const std::string& path, const std::string& json,
                                          const StreamWatch& watch) const;

 private:
  absl::StatusOr<HttpResponse> Exchange(const std::string& head, const std::string& body,
                                        const StreamWatch& watch) const;
  std::string Head(absl::string_view method, const std::string& path, size_t body_size) const;

  const HttpClientOptions options_;
};

}  // namespace somnus
