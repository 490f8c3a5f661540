#include "coordinator/console/console.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "coordinator/console/embedded_file.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
constexpr absl::string_view kFolder = "/console/";
constexpr absl::string_view kClientsPage = "index.html", kOperatorsPage = "operations.html";

// The content type of each file name extension.
constexpr std::pair<absl::string_view, const char*> kTypes[] = {
    {".css", "text/css; charset=utf-8"},
    {".html", "text/html; charset=utf-8"},
    {".js", "text/javascript; charset=utf-8"},
    {".svg", "image/svg+xml"},
};

const char* TypeOf(absl::string_view name) {
  for (const auto& [end, type] : kTypes) {
    if (absl::EndsWith(name, end)) return type;
  }
  return "application/octet-stream";
}

const EmbeddedFile* Find(absl::string_view name) {
  const auto files = EmbeddedFiles();
  const auto file =
      std::find_if(files.begin(), files.end(), [&](const auto& one) { return one.name == name; });
  return file == files.end() ? nullptr : &*file;
}

// A browser asks each time whether the file is still the same, so that no page runs with an older program's
// scripts.
HttpResponse FileResponse(const EmbeddedFile& file, absl::string_view if_none_match) {
  HttpResponse response{200, TypeOf(file.name), "", {}};
  response.headers = {{"ETag", std::string(file.etag)},     {"Cache-Control", "no-cache"},
                      {"Content-Security-Policy", kPolicy}, {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},   {"Cross-Origin-Resource-Policy", "same-origin"}};
  if (absl::StrContains(if_none_match, file.etag)) {
    response.status = 304;
  } else {
    response.body = std::string(file.body);
  }
  return response;
}

}  // namespace

bool IsConsoleTarget(absl::string_view target) {
  return target == "/" || absl::StartsWith(target, "/?") || absl::StartsWith(target, kFolder);
}

bool PrefersPage(absl::string_view accept) {
  return absl::StrContains(absl::AsciiStrToLower(accept), "text/html");
}

HttpResponse ConsolePage(bool admin, absl::string_view if_none_match) {
  HttpResponse response = FileResponse(*Find(admin ? kOperatorsPage : kClientsPage), if_none_match);
  response.headers.emplace_back("Vary", "Accept");
  return response;
}

std::optional<HttpResponse> ConsoleFile(bool admin, absl::string_view name, absl::string_view if_none_match) {
  const EmbeddedFile* file = Find(name);
  const bool is_other_page = name == (admin ? kClientsPage : kOperatorsPage);
  if (file == nullptr || is_other_page) return std::nullopt;
  return FileResponse(*file, if_none_match);
}

HttpResponse RootPointer(bool admin, bool has_console) {
  // A 404, as vLLM answers, which has nothing there.
  HttpResponse response =
      ErrorResponse({404, "/ is no route for programs; this body names some routes.", ""});
  Json pointer = Json::parse(response.body);
  pointer["server"] = "Somnus";
  pointer["routes"] = "/openapi.json";
  pointer["models"] = "/v1/models";
  pointer["health"] = "/health";
  if (admin) {
    pointer["status"] = "/status";
  } else {
    pointer["chat"] = "/v1/chat/completions";
    pointer["completions"] = "/v1/completions";
  }
  if (has_console) pointer["page"] = "/, with Accept: text/html, as browsers send it";
  response.body = pointer.dump();
  response.headers.emplace_back("Vary", "Accept");
  return response;
}

}  // namespace somnus
