// The flags of adapters (LoRA), for the table of the coordinator's flags.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "checkpoint/lora_adapter.h"
#include "coordinator/flags/flag_specs.h"
#include "proto/limits.h"

namespace somnus {
namespace {

using nlohmann::json;

constexpr size_t kMaxValueBytes = 1 << 20;

absl::Status AddModule(LoraModule module, LoraFlags* flags) {
  if (module.name.empty() || module.path.empty())
    return absl::InvalidArgumentError("needs a name and a path: NAME=PATH");
  for (const LoraModule& other : flags->modules) {
    if (other.name == module.name)
      return absl::InvalidArgumentError(absl::StrCat("names '", module.name, "' twice"));
  }
  if (flags->modules.size() >= static_cast<size_t>(kMaxAdapters))
    return absl::InvalidArgumentError(absl::StrCat("makes more than ", kMaxAdapters, " adapters"));
  flags->modules.push_back(std::move(module));
  return absl::OkStatus();
}

// {"name": ..., "path": ..., "base_model_name": ...}, as vLLM takes it.
absl::Status AddObject(const json& object, LoraFlags* flags) {
  if (!object.is_object()) return absl::InvalidArgumentError("is not a JSON object of name and path");
  LoraModule module;
  for (const auto& [key, value] : object.items()) {
    std::string* const text = key == "name"              ? &module.name
                              : key == "path"            ? &module.path
                              : key == "base_model_name" ? &module.base
                                                         : nullptr;
    if (text == nullptr)
      return absl::InvalidArgumentError(
          absl::StrCat("has the key '", key, "', and takes name, path and base_model_name"));
    if (!value.is_string())
      return absl::InvalidArgumentError(absl::StrCat("has a ", key, " that is no string"));
    *text = value.get<std::string>();
  }
  return AddModule(std::move(module), flags);
}

absl::Status SetModules(const std::string& value, LoraFlags* flags) {
  if (value.size() > kMaxValueBytes) return absl::InvalidArgumentError("is too long");
  const absl::string_view text = absl::StripAsciiWhitespace(value);
  if (!absl::StartsWith(text, "{") && !absl::StartsWith(text, "[")) {
    const size_t equals = value.find('=');
    if (equals == std::string::npos) return absl::InvalidArgumentError("is not NAME=PATH");
    return AddModule({.name = value.substr(0, equals), .path = value.substr(equals + 1)}, flags);
  }
  const json parsed = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (parsed.is_object()) return AddObject(parsed, flags);
  if (!parsed.is_array()) return absl::InvalidArgumentError("is not valid JSON");
  for (const json& object : parsed) {
    if (absl::Status status = AddObject(object, flags); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

FlagGroup AdapterFlags(LoraFlags* f) {
  return {
      "Adapters (LoRA)",
      {
          Flag::Switch("enable-lora", &f->enabled,
                       "serve adapters of the model in PEFT's format, which requests choose by their name"),
          Flag::Custom(
              "lora-modules", "NAME=PATH|JSON", "",
              [f](const std::string& value) { return SetModules(value, f); },
              "an adapter that is loaded at the start; may be repeated; JSON: an object of name, path and "
              "base_model_name, or a list of such objects"),
          Flag::Int("max-loras", &f->max_loras, 1, kMaxAdapters,
                    "different adapters in one step, at most; every worker's device has a place for each"),
          Flag::Int("max-cpu-loras", &f->max_cpu_loras, 0, kMaxAdapters,
                    "adapters that every worker holds in host memory; the least recently used one beyond is "
                    "forgotten, and read again when a request names it; 0: as many as --max-loras and "
                    "--lora-modules ask for"),
          Flag::Int("max-lora-rank", &f->max_rank, 1, LoraAdapter::kMaxRank,
                    "the largest rank of an adapter, for which places are made"),
          Flag::Int("max-lora-names", &f->max_names, 1, 1 << 20,
                    "adapters that the server knows by name, whether the workers hold them or have forgotten "
                    "them; a load beyond is refused"),
          Flag::Time("lora-unload-timeout", &f->unload_timeout, absl::ZeroDuration(), kLongestTimeFlag,
                     "how long unloading an adapter waits for the adapter's open requests"),
          Flag::Time(
              "lora-ready-timeout", &f->ready_timeout, absl::ZeroDuration(), kLongestTimeFlag,
              "how long requests wait for an adapter that has to be read again while the workers are lost "
              "and recovered; then they are refused"),
          Flag::Time(
              "lora-retry-pause", &f->retry_pause, absl::ZeroDuration(), kLongestTimeFlag,
              "how long requests get the same error after their adapter could not be read again, before "
              "a request has it read once more"),
      }};
}

}  // namespace somnus
