#pragma once
// The server that a command talks to. One address, --url or SOMNUS_URL, is enough: the server itself tells
// its other ports (GET /server_info).

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/flags.h"
#include "tools/http/client.h"

namespace somnus::cli {

struct ServerOptions {
  std::optional<std::string> url;              // else SOMNUS_URL, else http://127.0.0.1:8000
  std::optional<std::string> api_key;          // else SOMNUS_API_KEY, else none
  std::optional<std::string> control_api_key;  // else SOMNUS_CONTROL_API_KEY, else none
};
FlagGroup ServerFlags(ServerOptions* options);

struct Address {
  std::string host = "127.0.0.1";
  int port = 8000;

  std::string ToString() const;  // "127.0.0.1:8000", "[::1]:8000"
};

// Takes "http://host:port", "host:port", "host" or "http://[::1]:8000". A path is ignored. InvalidArgument
// for anything else, https too.
absl::StatusOr<Address> ParseUrl(const std::string& url);

// A server that has responded.
struct Server {
  Address http;  // the public port
  Address grpc;
  Address control;  // operators' gRPC
  std::string api_key;
  std::string control_api_key;

  HttpClient Client() const;
};

// Asks the server for its ports. Unavailable: nothing listens there, or what listens is not a Somnus server;
// the message says which. InvalidArgument: the address is malformed. FailedPrecondition: the server requires
// another API key.
absl::StatusOr<Server> FindServer(const ServerOptions& options);

}  // namespace somnus::cli
