// The coordinator's flags for browsers and web pages: origins, methods, headers, host names and request ids.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/flags/flag_specs.h"

namespace somnus {
namespace {

// The value is "a,b", or a JSON list as for vLLM: ["a", "b"].
absl::Status SetWords(const std::string& value, std::vector<std::string>* words) {
  std::vector<std::string> parsed;
  if (absl::StartsWith(absl::StripAsciiWhitespace(value), "[")) {
    const nlohmann::json list = nlohmann::json::parse(value, nullptr, /*allow_exceptions=*/false);
    if (list.is_discarded()) return absl::InvalidArgumentError(absl::StrCat("'", value, "' is no JSON list"));
    for (const nlohmann::json& item : list) {
      if (!item.is_string())
        return absl::InvalidArgumentError(absl::StrCat("'", value, "' is no list of strings"));
      parsed.push_back(item.get<std::string>());
    }
  } else {
    for (const absl::string_view word : absl::StrSplit(value, ','))
      parsed.emplace_back(absl::StripAsciiWhitespace(word));
  }
  for (const std::string& word : parsed) {
    const bool one_word = !word.empty() && std::none_of(word.begin(), word.end(), [](unsigned char c) {
      return !absl::ascii_isgraph(c) || c == ',';
    });
    if (!one_word) return absl::InvalidArgumentError(absl::StrCat("'", value, "' is no list of words"));
  }
  *words = std::move(parsed);
  return absl::OkStatus();
}

// Accepts origins only in the form in which browsers write an origin, since CorsPolicy compares text.
absl::Status SetOrigins(const std::string& value, std::vector<std::string>* origins) {
  std::vector<std::string> parsed;
  const absl::Status status = SetWords(value, &parsed);
  if (!status.ok()) return status;
  for (const std::string& origin : parsed) {
    const size_t scheme = origin.find("://");
    const bool is_origin = scheme != std::string::npos && scheme > 0 && scheme + 3 < origin.size() &&
                           origin.find('/', scheme + 3) == std::string::npos;
    if (origin != "*" && origin != "null" && !is_origin)
      return absl::InvalidArgumentError(absl::StrCat("'", origin, "' is neither * nor scheme://host[:port]"));
  }
  *origins = std::move(parsed);
  return absl::OkStatus();
}

Flag Words(const char* name, const char* shown, const char* default_text, std::vector<std::string>* words,
           const char* help) {
  return Flag::Custom(
      name, shown, default_text, [words](const std::string& value) { return SetWords(value, words); }, help);
}

}  // namespace

FlagGroup BrowserFlags(Flags* f) {
  CorsOptions* const cors = &f->cors;
  return {
      "Browsers",
      {
          Flag::Custom(
              "allowed-origins", "ORIGIN,...", "none",
              [cors](const std::string& value) { return SetOrigins(value, &cors->allowed_origins); },
              "origins (https://chat.example, or * for all) whose web pages may use clients' HTTP API; this "
              "list "
              "and those below may be JSON, too"),
          Words("allowed-methods", "METHOD,...", "*", &cors->allowed_methods, "methods that they may use"),
          Words("allowed-headers", "HEADER,...", "*", &cors->allowed_headers, "headers that they may send"),
          Flag::Switch("allow-credentials", &cors->allow_credentials,
                       "they may send cookies and client certificates"),
          Words("admin-allowed-hosts", "NAME,...", "", &f->admin_allowed_hosts,
                "names of this server under which operators' HTTP API may be called where it has no key, "
                "besides "
                "addresses, --admin-host, localhost and local names; *: any"),
          Flag::Switch("console", &f->console,
                       "pages for browsers: chat at / of clients' HTTP port, operations at / of operators'"),
          Flag::Switch(
              "enable-request-id-headers", &f->request_id_headers,
              "a response to a request without X-Request-Id has a new one; one that a client sends always "
              "comes back"),
      }};
}

}  // namespace somnus
