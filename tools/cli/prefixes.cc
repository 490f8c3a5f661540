// The command prefixes: pin, unpin, list.
#include <stdio.h>
#include <unistd.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "tools/cli/commands.h"
#include "tools/cli/openai.h"
#include "tools/cli/server.h"
#include "tools/cli/terminal.h"
#include "tools/cli/text_table.h"
#include "tools/http/json_fields.h"

namespace somnus::cli {
namespace {

using Json = nlohmann::json;

std::string JsonLine(const Json& json) {
  return absl::StrCat(json.dump(-1, ' ', /*ensure_ascii=*/true), "\n");
}

struct PrefixOptions {
  ServerOptions server;
  std::string model, cache_salt;
  bool system = false;
  bool json = false;
};

// One line about a pin.
std::string Describe(const Json& prefix) {
  const std::string line =
      absl::StrFormat("%s  %s: %d tokens, %d of %d blocks in the cache", Printable(StringAt(prefix, "id")),
                      Printable(StringAt(prefix, "model")), IntAt(prefix, "tokens"),
                      IntAt(prefix, "held_blocks"), IntAt(prefix, "blocks"));
  return Wrap(line, OutputColumns(), 2) + "\n";
}

absl::StatusOr<Json> Read(const absl::StatusOr<HttpResponse>& response) {
  RETURN_IF_ERROR(response.status());
  if (response->status != 200) return absl::InternalError(ErrorMessage(*response));
  Json json = Json::parse(response->body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::DataLossError("the server's answer is not JSON");
  return json;
}

absl::StatusOr<int> Pin(const PrefixOptions& options, absl::Span<const std::string> words) {
  std::string prompt = absl::StrJoin(words, " ");
  if (prompt.empty() && !IsTerminal(STDIN_FILENO)) {
    ASSIGN_OR_RETURN(prompt, ReadStdin());
  }
  if (prompt.empty()) return absl::InvalidArgumentError("no prompt: give one, or pipe one in");
  Json request = Json::object();
  if (options.system) {
    request["messages"] = Json::array({{{"role", "system"}, {"content", prompt}}});
  } else {
    request["prompt"] = prompt;
  }
  if (!options.model.empty()) request["model"] = options.model;
  if (!options.cache_salt.empty()) request["cache_salt"] = options.cache_salt;
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  // Arguments and pipes may hold any bytes; invalid UTF-8 becomes U+FFFD.
  const std::string body = request.dump(-1, ' ', false, Json::error_handler_t::replace);
  ASSIGN_OR_RETURN(const Json prefix, Read(server.Client().Post("/v1/prefixes", body)));
  fputs(options.json ? JsonLine(prefix).c_str() : Describe(prefix).c_str(), stdout);
  return kOk;
}

absl::StatusOr<int> Unpin(const PrefixOptions& options, absl::Span<const std::string> ids) {
  if (ids.empty()) return absl::InvalidArgumentError("which prefix? somnus prefixes list shows their ids");
  for (const std::string& id : ids) {
    const bool is_id = !id.empty() && absl::c_all_of(id, [](char c) {
      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-';
    });
    if (!is_id) return absl::InvalidArgumentError(absl::StrCat("'", id, "' is no prefix's id"));
  }
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  for (const std::string& id : ids) {
    RETURN_IF_ERROR(Read(server.Client().Delete(absl::StrCat("/v1/prefixes/", id))).status());
    printf("%s is unpinned\n", id.c_str());
  }
  return kOk;
}

absl::StatusOr<int> ListPrefixes(const PrefixOptions& options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  ASSIGN_OR_RETURN(const Json list, Read(server.Client().Get("/v1/prefixes")));
  if (options.json) return fputs(JsonLine(list).c_str(), stdout) < 0 ? kServerError : kOk;
  const Json prefixes = list.value("data", Json::array());
  int count = 0;
  for (const Json& prefix : prefixes) {
    if (!options.model.empty() && StringAt(prefix, "model") != options.model) continue;
    fputs(Describe(prefix).c_str(), stdout);
    ++count;
  }
  if (count == 0) puts("no prefix is pinned");
  return kOk;
}

absl::StatusOr<int> Run(const PrefixOptions& options, const std::vector<std::string>& words) {
  const std::string verb = words.empty() ? "list" : words[0];
  const auto rest = absl::MakeConstSpan(words).subspan(words.empty() ? 0 : 1);
  if (verb == "pin") return Pin(options, rest);
  if (verb == "unpin") return Unpin(options, rest);
  if (verb == "list" && rest.empty()) return ListPrefixes(options);
  return absl::InvalidArgumentError(
      absl::StrCat("prefixes ", absl::StrJoin(words, " "), ": there are pin, unpin and list"));
}

}  // namespace

int RunPrefixes(const std::vector<std::string>& args) {
  PrefixOptions o;
  const FlagTable table = {
      .program = "somnus prefixes",
      .usage = "somnus prefixes [list | pin PROMPT | unpin ID...] [flags]",
      .about =
          "Prompts whose beginnings stay in the prefix cache. pin computes PROMPT (or standard input) and\n"
          "keeps its full blocks until unpin, whatever else is served.\n\n"
          "  somnus prefixes pin --system < system_prompt.txt",
      .groups = {{"Flags",
                  {Flag::Switch("system", &o.system,
                                "the prompt is a system message, for the chat template; else it is as it is"),
                   Flag::Text("cache-salt", &o.cache_salt, "of the requests that begin with the prompt")
                       .Shows("SALT"),
                   Flag::Switch("json", &o.json, "the server's own answer"),
                   Flag::Text("model", &o.model, "which model, where several are served").Shows("NAME")}},
                 ServerFlags(&o.server)},
      .max_positional = std::numeric_limits<size_t>::max()};
  std::vector<std::string> words;
  if (const auto code = ParseCommand(table, args, &words)) return *code;
  return ExitCode(Run(o, words));
}

}  // namespace somnus::cli
