#include "tools/cli/server.h"

#include <stdlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
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
  return absl::InvalidArgumentError(absl::StrCat(
      "'", url,
      "' is not an address of the form http://HOST:PORT or https://HOST:PORT/PREFIX (--url, SOMNUS_URL)"));
}

// Whether the path of an address can stand in the first line of a request as it is.
bool IsPath(absl::string_view path) {
  return std::all_of(path.begin(), path.end(),
                     [](char c) { return absl::ascii_isgraph(c) && c != '?' && c != '#'; });
}

std::string PrefixOf(absl::string_view path) {
  const auto strip_slashes = [&path] {
    while (absl::ConsumeSuffix(&path, "/")) {
    }
  };
  strip_slashes();
  if (absl::ConsumeSuffix(&path, "/v1")) strip_slashes();
  return std::string(path);
}

HttpClient ClientOf(const Address& address, const std::string& api_key, const TlsClientOptions& trust,
                    absl::Duration read_timeout = HttpClientOptions().read_timeout) {
  HttpClientOptions options;
  options.read_timeout = read_timeout;
  options.host = address.host;
  options.port = address.port;
  options.prefix = address.prefix;
  options.api_key = api_key;
  if (address.tls) options.tls = trust;
  return HttpClient(options);
}

// The error for an address that did not respond in HTTP/1: says what probably listens there.
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
  if (absl::IsUnauthenticated(status)) {
    return absl::FailedPreconditionError(
        absl::StrCat(where, ": ", status.message(), " (--ca-cert or SOMNUS_CA_CERT names its authority)"));
  }
  if (absl::IsPermissionDenied(status)) {
    return absl::FailedPreconditionError(
        absl::StrCat(where, ": ", status.message(), " (--client-cert and --client-key)"));
  }
  if (absl::IsInvalidArgument(status)) return status;
  return absl::UnavailableError(absl::StrCat(where, " is not a Somnus server: ", status.message()));
}

// The error for an address whose response no Somnus server sends.
absl::Status NoServer(const Address& address, const char* path, const HttpResponse& response) {
  if (response.status == 400 && absl::StrContains(response.body, "HTTPS")) {
    return absl::UnavailableError(
        absl::StrCat(address.ToString(), " speaks https, not http: --url=https://", address.ToString()));
  }
  return absl::UnavailableError(absl::StrCat(address.ToString(), " is not a Somnus server: GET ",
                                             address.prefix, path, " is HTTP ", response.status));
}

absl::Status CheckInfo(const Address& address, bool has_key, const HttpResponse& response) {
  if (response.status == 401) {
    return absl::FailedPreconditionError(
        absl::StrCat(address.ToString(), has_key ? " refuses this API key" : " requires an API key",
                     " (--api-key or SOMNUS_API_KEY)"));
  }
  return response.status == 200 ? absl::OkStatus() : NoServer(address, "/server_info", response);
}

absl::StatusOr<Server> ReadInfo(const Address& address, const std::string& body) {
  const nlohmann::json info = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  const int http_port = IntAt(info, "http_port"), admin_port = IntAt(info, "admin_port");
  if (http_port == 0)
    return absl::UnavailableError(absl::StrCat(address.ToString(), " is not a Somnus server"));
  // The given port stays, even where the server names a different port: the port may be forwarded. TLS stays,
  // too: a proxy in between may have added TLS.
  const bool admin = address.port == admin_port && address.port != http_port;
  const bool tls = BoolAt(info, "tls"), admin_tls = BoolAt(info, "admin_tls");
  Server server;
  server.http = admin ? Address{address.host, http_port, tls} : address;
  server.grpc = {address.host, IntAt(info, "grpc_port"), tls};
  server.control = {address.host, IntAt(info, "control_port"), admin_tls};
  // The server names its own ports, which know no prefix of a proxy.
  server.admin = admin ? address : Address{address.host, admin_port, admin_tls};
  return server;
}

TlsClientOptions Trust(const ServerOptions& options) {
  TlsClientOptions trust;
  trust.authority = options.ca_cert.value_or(Environment("SOMNUS_CA_CERT", ""));
  trust.certificate = options.client_cert.value_or(Environment("SOMNUS_CLIENT_CERT", ""));
  trust.key = options.client_key.value_or(Environment("SOMNUS_CLIENT_KEY", ""));
  return trust;
}

}  // namespace

std::string Address::ToString() const {
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

std::string Address::Url() const { return absl::StrCat(tls ? "https://" : "http://", ToString(), prefix); }

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
          {Flag::Text("url", &options->url,
                      "the server's public HTTP address, with the path before its routes where a proxy has "
                      "one; SOMNUS_URL is its default")
               .Shows("URL")
               .Default(kDefaultUrl),
           Flag::Custom("port", "PORT", "", set_port, "short for --url=http://127.0.0.1:PORT"),
           Flag::Text("api-key", &options->api_key,
                      "bearer token; better in SOMNUS_API_KEY, where `ps` does not show it")
               .Shows("KEY"),
           Flag::Text("admin-api-key", &options->admin_api_key,
                      "operators' bearer token; better in SOMNUS_ADMIN_API_KEY")
               .Shows("KEY"),
           Flag::Text("ca-cert", &options->ca_cert,
                      "authorities in PEM, one of which the server's certificate must have")
               .Shows("PATH")
               .Default("SOMNUS_CA_CERT, else the system's"),
           Flag::Text("client-cert", &options->client_cert,
                      "certificate in PEM for a server that wants to see one; else SOMNUS_CLIENT_CERT")
               .Shows("PATH"),
           Flag::Text("client-key", &options->client_key, "its private key; else SOMNUS_CLIENT_KEY")
               .Shows("PATH")}};
}

absl::StatusOr<Address> ParseUrl(const std::string& url) {
  absl::string_view rest = url;
  Address address;
  address.tls = absl::ConsumePrefix(&rest, "https://");
  if (!address.tls) absl::ConsumePrefix(&rest, "http://");
  const size_t slash = std::min(rest.find('/'), rest.size());
  if (!IsPath(rest.substr(slash))) return BadUrl(url);
  address.prefix = PrefixOf(rest.substr(slash));
  rest = rest.substr(0, slash);
  // The colon before the port is the last colon, and comes after an IPv6 address's bracket.
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

HttpClient Server::Client() const { return ClientOf(http, api_key, trust); }

HttpClient Server::AdminClient(absl::Duration read_timeout) const {
  return ClientOf(admin, admin_api_key, trust, read_timeout);
}

absl::StatusOr<Server> FindServer(const ServerOptions& options) {
  ASSIGN_OR_RETURN(const Address address,
                   ParseUrl(options.url.value_or(Environment("SOMNUS_URL", kDefaultUrl))));
  const std::string api_key = options.api_key.value_or(Environment("SOMNUS_API_KEY", ""));
  const std::string admin_api_key = options.admin_api_key.value_or(Environment("SOMNUS_ADMIN_API_KEY", ""));
  const TlsClientOptions trust = Trust(options);
  absl::StatusOr<HttpResponse> response = ClientOf(address, api_key, trust).Get("/server_info");
  // The address may be operators'.
  if (response.ok() && response->status == 401 && !admin_api_key.empty())
    response = ClientOf(address, admin_api_key, trust).Get("/server_info");
  if (!response.ok()) return NotThere(address, response.status());
  RETURN_IF_ERROR(CheckInfo(address, !api_key.empty(), *response));
  ASSIGN_OR_RETURN(Server server, ReadInfo(address, response->body));
  server.api_key = api_key;
  server.admin_api_key = admin_api_key;
  server.trust = trust;
  if (options.url.has_value()) server.url_flag = absl::StrCat(" --url=", *options.url);
  return server;
}

absl::StatusOr<bool> IsReady(const ServerOptions& options) {
  ASSIGN_OR_RETURN(const Address address,
                   ParseUrl(options.url.value_or(Environment("SOMNUS_URL", kDefaultUrl))));
  const absl::StatusOr<HttpResponse> response = ClientOf(address, "", Trust(options)).Get("/health");
  if (!response.ok()) return NotThere(address, response.status());
  constexpr int kServes = 200, kDoesNot = 503;
  if (response->status == kServes || response->status == kDoesNot) return response->status == kServes;
  return NoServer(address, "/health", *response);
}

}  // namespace somnus::cli
