#include "coordinator/flags.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "coordinator/flag_specs.h"

namespace somnus {
namespace {

const FlagSpec* FindSpec(const std::string& name) {
  for (const FlagSpec& spec : FlagSpecs()) {
    if (name == spec.name) return &spec;
  }
  return nullptr;
}

absl::Status CheckTogether(const Flags& flags) {
  if (flags.help || flags.version) return absl::OkStatus();
  if (flags.model.empty()) return absl::InvalidArgumentError("--model: no model was given; see --help");
  if (flags.max_num_batched_tokens < flags.max_num_seqs) {
    return absl::InvalidArgumentError(absl::StrCat("--max-num-batched-tokens: ", flags.max_num_batched_tokens,
                                                   " is less than --max-num-seqs (", flags.max_num_seqs,
                                                   ")"));
  }
  if (flags.max_long_partial_prefills > flags.max_num_partial_prefills) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-long-partial-prefills: ", flags.max_long_partial_prefills,
                     " is more than --max-num-partial-prefills (", flags.max_num_partial_prefills, ")"));
  }
  if (flags.port != 0 &&
      (flags.port == flags.grpc_port || (flags.port == flags.admin_port && flags.host == flags.admin_host))) {
    return absl::InvalidArgumentError(absl::StrCat("--port: ", flags.port, " is given twice"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Flags> ParseFlags(const std::vector<std::string>& args) {
  Flags flags;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (!absl::StartsWith(arg, "-") || arg == "-") {
      if (!flags.model.empty())
        return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", arg, "'"));
      flags.model = arg;
      continue;
    }
    const size_t equals = std::min(arg.find('='), arg.size());
    std::string name = arg == "-h" ? "help" : std::string(absl::StripPrefix(arg.substr(0, equals), "--"));
    name = absl::StrReplaceAll(name, {{"_", "-"}});
    const bool has_value = equals < arg.size();
    std::string value = has_value ? arg.substr(equals + 1) : "";
    const FlagSpec* spec = FindSpec(name);
    if (spec == nullptr && absl::StartsWith(name, "no-") && !has_value) {
      spec = FindSpec(name.substr(3));
      if (spec != nullptr && *spec->value != '\0') spec = nullptr;
      value = "false";
    } else if (spec != nullptr && !has_value && *spec->value == '\0') {
      value = "true";
    } else if (spec != nullptr && !has_value) {
      if (i + 1 == args.size()) return absl::InvalidArgumentError(absl::StrCat("--", name, ": has no value"));
      value = args[++i];
    }
    if (spec == nullptr || (!absl::StartsWith(arg, "--") && arg != "-h")) {
      return absl::InvalidArgumentError(absl::StrCat("unknown flag ", arg.substr(0, equals), "; see --help"));
    }
    const std::string problem = spec->set(value, &flags);
    if (!problem.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--", spec->name, ": '", value, "': ", problem));
    }
  }
  RETURN_IF_ERROR(CheckTogether(flags));
  return flags;
}

std::string FlagsHelp() {
  std::string text =
      "usage: coordinator [--model] PATH [flags]\n\nServes a language model: HTTP (OpenAI) and gRPC.\n\n";
  for (const FlagSpec& spec : FlagSpecs()) {
    const std::string left =
        *spec.value == '\0' ? absl::StrCat("--", spec.name) : absl::StrCat("--", spec.name, "=", spec.value);
    absl::StrAppendFormat(&text, "  %-32s %s\n", left, spec.help);
  }
  return text;
}

}  // namespace somnus
