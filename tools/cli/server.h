#pragma once
// The server that a command talks to. A single address, --url or SOMNUS_URL, is enough: the server itself
// tells its other ports (GET /server_info).

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/flags.h"
#include "base/tls_client.h"
#include "tools/http/client.h"

namespace somnus::cli {

// Each value is the flag's, else the environment's, else the default.
struct ServerOptions {
  std::optional<std::string> url;            // SOMNUS_URL; http://127.0.0.1:8000
  std::optional<std::string> api_key;        // SOMNUS_API_KEY; none
  std::optional<std::string> admin_api_key;  // SOMNUS_ADMIN_API_KEY; none
  std::optional<std::string> ca_cert;        // SOMNUS_CA_CERT; the system's authorities
  std::optional<std::string> client_cert;    // SOMNUS_CLIENT_CERT; none
  std::optional<std::string> client_key;     // SOMNUS_CLIENT_KEY; none
};
FlagGroup ServerFlags(ServerOptions* options);

struct Address {
  std::string host = "127.0.0.1";
  int port = 8000;
  bool tls = false;
  std::string prefix;  // of HTTP paths, as behind a proxy: "/llm"; empty: none

  std::string ToString() const;  // "127.0.0.1:8000", "[::1]:8000"
  std::string Url() const;       // "https://127.0.0.1:8000", "http://127.0.0.1:8000/llm"
};

// Takes "http://host:port", "https://host:port", "host:port", "host" or "http://[::1]:8000". A path becomes
// the prefix, without the "/v1" that base URLs of OpenAI's clients end with. InvalidArgument for anything
// else.
absl::StatusOr<Address> ParseUrl(const std::string& url);

// A server that has responded.
struct Server {
  Address http;  // the public port
  Address grpc;
  Address control;  // operators' gRPC
  Address admin;    // operators' HTTP
  std::string api_key;
  std::string admin_api_key;
  TlsClientOptions trust;  // where an address has TLS
  std::string url_flag;    // " --url=URL" where the command was given a URL: a further command needs the
                           // flag, too

  HttpClient Client() const;  // of the public port
  // A client of operators' port.
  HttpClient AdminClient(absl::Duration read_timeout = HttpClientOptions().read_timeout) const;
};

// Asks the server for its ports. Unavailable: nothing listens there, or the listener is not a Somnus server;
// the message says which. InvalidArgument: the address is malformed. FailedPrecondition: the server requires
// another API key or certificate, or the server's certificate is not to be trusted.
absl::StatusOr<Server> FindServer(const ServerOptions& options);

// Whether the server serves now; needs no key. Errors are FindServer's.
absl::StatusOr<bool> IsReady(const ServerOptions& options);

}  // namespace somnus::cli
