#include "tools/cli/server.h"

#include <stdlib.h>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "tools/http/json_fields.h"

namespace somnus::cli {
namespace {

constexpr char kDefaultUrl[] = "http://127.0.0.1:8000";

std::string Environment(const char* name, const char* otherwise) {
  const char* value = getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

absl::Status BadUrl(const std::string& url) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", url, "' is not an address of the form http://HOST:PORT (--url, SOMNUS_URL)"));
}

HttpClient ClientOf(const Address& address, const std::string& api_key) {
  HttpClientOptions options;
  options.host = address.host;
  options.port = address.port;
  options.api_key = api_key;
  return HttpClient(options);
}

// The error for an address that did not respond in HTTP/1: says what is probably there.
absl::Status NotThere(const Address& address, const absl::Status& status) {
  const std::string where = address.ToString();
  if (absl::IsUnimplemented(status)) {
    return absl::UnavailableError(
        absl::StrCat(where, " is a gRPC port; give the address of the HTTP port (--url)"));
  }
  if (absl::IsUnavailable(status)) {
    return absl::UnavailableError(
        absl::StrCat(status.message(), "; is the server running there? --url names another address"));
  }
  return absl::UnavailableError(absl::StrCat(where, " is not a Somnus server: ", status.message()));
}

absl::StatusOr<Server> ReadInfo(const Address& address, const std::string& api_key,
                                const HttpResponse& response) {
  if (response.status == 401) {
    return absl::FailedPreconditionError(
        absl::StrCat(address.ToString(), api_key.empty() ? " requires an API key" : " refuses this API key",
                     " (--api-key or SOMNUS_API_KEY)"));
  }
  const nlohmann::json info = nlohmann::json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  const int http_port = IntAt(info, "http_port"), admin_port = IntAt(info, "admin_port");
  if (response.status != 200 || http_port == 0) {
    return absl::UnavailableError(absl::StrCat(
        address.ToString(), " is not a Somnus server: GET /server_info is HTTP ", response.status));
  }
  // The given port stays, even where the server names another one: the port may be forwarded.
  const bool admin = address.port == admin_port && address.port != http_port;
  Server server;
  server.http = {address.host, admin ? http_port : address.port};
  server.grpc = {address.host, IntAt(info, "grpc_port")};
  server.control = {address.host, IntAt(info, "control_port")};
  server.api_key = api_key;
  return server;
}

}  // namespace

std::string Address::ToString() const {
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

FlagGroup ServerFlags(ServerOptions* options) {
  const auto set_port = [options](const std::string& text) -> absl::Status {
    int port = 0;
    if (!absl::SimpleAtoi(text, &port) || port < 1 || port > 65535) {
      return absl::InvalidArgumentError("is not a whole number from 1 to 65535");
    }
    options->url = absl::StrCat("http://127.0.0.1:", port);
    return absl::OkStatus();
  };
  return {"Server",
          {Flag::Text("url", &options->url, "the server's public HTTP address; SOMNUS_URL is its default")
               .Shows("URL")
               .Default(kDefaultUrl),
           Flag::Custom("port", "PORT", "", set_port, "short for --url=http://127.0.0.1:PORT"),
           Flag::Text("api-key", &options->api_key,
                      "bearer token; better in SOMNUS_API_KEY, where `ps` does not show it")
               .Shows("KEY")}};
}

absl::StatusOr<Address> ParseUrl(const std::string& url) {
  absl::string_view rest = url;
  if (absl::StartsWith(rest, "https://")) {
    return absl::InvalidArgumentError(absl::StrCat("'", url, "': the server speaks http, not https"));
  }
  absl::ConsumePrefix(&rest, "http://");
  rest = rest.substr(0, rest.find('/'));
  Address address;
  // The colon before the port is the last one, and comes after an IPv6 address's bracket.
  const size_t bracket = rest.rfind(']');
  const size_t colon = rest.rfind(':');
  if (colon != rest.npos && (bracket == rest.npos || colon > bracket)) {
    const absl::string_view port = rest.substr(colon + 1);
    if (!absl::SimpleAtoi(port, &address.port) || address.port < 1 || address.port > 65535)
      return BadUrl(url);
    rest = rest.substr(0, colon);
  }
  const bool bracketed = absl::ConsumePrefix(&rest, "[");
  if (bracketed != absl::ConsumeSuffix(&rest, "]") || (!bracketed && absl::StrContains(rest, ':')))
    return BadUrl(url);
  if (rest.empty() || rest.find_first_of("[]@ ") != rest.npos) return BadUrl(url);
  address.host = std::string(rest);
  return address;
}

HttpClient Server::Client() const { return ClientOf(http, api_key); }

absl::StatusOr<Server> FindServer(const ServerOptions& options) {
  ASSIGN_OR_RETURN(const Address address,
                   ParseUrl(options.url.value_or(Environment("SOMNUS_URL", kDefaultUrl))));
  const std::string api_key = options.api_key.value_or(Environment("SOMNUS_API_KEY", ""));
  const absl::StatusOr<HttpResponse> response = ClientOf(address, api_key).Get("/server_info");
  if (!response.ok()) return NotThere(address, response.status());
  ASSIGN_OR_RETURN(Server server, ReadInfo(address, api_key, *response));
  server.control_api_key = options.control_api_key.value_or(Environment("SOMNUS_CONTROL_API_KEY", ""));
  return server;
}

}  // namespace somnus::cli
