#include "checkpoint/lora_config.h"

#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/json_file.h"
#include "checkpoint/safetensors.h"

namespace somnus {
namespace {

using nlohmann::json;

constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxPatterns = 100'000;  // a model has fewer modules
constexpr size_t kMaxExpressions = 1000;
constexpr int32_t kLargestRank = 1 << 20;

bool IsSet(const json& value) {
  return !value.is_null() && value != json(false) && !(value.is_structured() && value.empty());
}

// Refuses the keys of variants that do not compute y + scale * B * A * x.
absl::Status RefuseVariants(JsonFields* fields) {
  for (const char* key :
       {"use_dora", "modules_to_save", "lora_bias", "fan_in_fan_out", "use_qalora", "layer_replication",
        "target_parameters", "trainable_token_indices", "alora_invocation_tokens", "arrow_config",
        "use_bdlora", "megatron_config", "kasa_config", "monteclora_config"}) {
    const json* value = fields->Find(key);
    if (value != nullptr && IsSet(*value)) return fields->Unsupported(key, value->dump());
  }
  if (const std::string type = fields->String("peft_type", "LORA"); type != "LORA")
    return fields->Unsupported("peft_type", type);
  if (const std::string bias = fields->String("bias", "none"); bias != "none")
    return fields->Unsupported("bias", bias);
  // These initializations change the base model's weights, too.
  if (const json* init = fields->Find("init_lora_weights"); init != nullptr && init->is_string()) {
    const std::string name = init->get<std::string>();
    for (const char* changes : {"pissa", "olora", "corda", "loftq", "lora_ga"}) {
      if (absl::StartsWithIgnoreCase(name, changes)) return fields->Unsupported("init_lora_weights", name);
    }
  }
  return fields->status();
}

absl::StatusOr<std::vector<std::string>> ReadTargets(JsonFields* fields) {
  std::vector<std::string> targets;
  const json* value = fields->Find("target_modules");
  if (value == nullptr || value->is_null() || value->is_string()) return targets;
  if (!value->is_array()) return fields->Bad("target_modules", "neither a list of names nor a string");
  for (const json& name : *value) {
    if (!name.is_string()) return fields->Bad("target_modules", "not a list of names");
    targets.push_back(CanonicalName(name.get<std::string>()));
  }
  return targets;
}

}  // namespace

absl::StatusOr<LoraConfig::Pattern> LoraConfig::ReadPattern(const JsonFields& fields, const char* key,
                                                            const nlohmann::ordered_json& entries) {
  Pattern pattern;
  const auto found = entries.find(key);
  if (found == entries.end() || found->is_null()) return pattern;
  if (!found->is_object()) return fields.Bad(key, "not an object");
  if (found->size() > kMaxPatterns) return fields.Bad(key, "too many entries");
  size_t num_expressions = 0;
  for (const auto& [name, value] : found->items()) {
    absl::StatusOr<ModulePattern> compiled = ModulePattern::Compile(name);
    if (!compiled.ok()) return fields.Bad(key, compiled.status().message());
    num_expressions += compiled->is_expression() ? 1 : 0;
    if (num_expressions > kMaxExpressions) return fields.Bad(key, "too many regular expressions");
    if (!value.is_number() || !std::isfinite(value.get<double>()))
      return fields.Bad(key, absl::StrCat("'", name, "' is not a number"));
    pattern.emplace_back(*std::move(compiled), value.get<double>());
  }
  return pattern;
}

absl::StatusOr<double> LoraConfig::Lookup(const Pattern& pattern, const char* key,
                                          const LoraModuleName& module, double otherwise) {
  for (const auto& [name, number] : pattern) {
    const absl::StatusOr<bool> matches = name.Matches(module);
    if (!matches.ok())
      return absl::InvalidArgumentError(
          absl::StrCat(kLoraConfigFile, ": ", key, ": ", matches.status().message()));
    if (*matches) return number;
  }
  return otherwise;
}

absl::StatusOr<LoraConfig> LoraConfig::Parse(absl::string_view text) {
  if (text.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(kLoraConfigFile, ": ", text.size(), " bytes are more than ", kMaxFileBytes));
  }
  ASSIGN_OR_RETURN(const json object, ParseJsonObject(kLoraConfigFile, text));
  JsonFields fields(kLoraConfigFile, object);
  RETURN_IF_ERROR(RefuseVariants(&fields));
  LoraConfig config;
  config.rank_ = static_cast<int32_t>(fields.Int("r", 8, 1, kLargestRank));
  config.alpha_ = fields.Double("lora_alpha", 8);
  config.rank_stabilized_ = fields.Bool("use_rslora", false);
  RETURN_IF_ERROR(fields.status());
  if (!std::isfinite(config.alpha_)) return fields.Bad("lora_alpha", "not a finite number");
  // In the file's order, which `object` has lost.
  const auto ordered = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  ASSIGN_OR_RETURN(config.rank_pattern_, ReadPattern(fields, "rank_pattern", ordered));
  ASSIGN_OR_RETURN(config.alpha_pattern_, ReadPattern(fields, "alpha_pattern", ordered));
  ASSIGN_OR_RETURN(config.targets_, ReadTargets(&fields));
  return config;
}

absl::StatusOr<int32_t> LoraConfig::RankOf(const LoraModuleName& module) const {
  ASSIGN_OR_RETURN(const double rank, Lookup(rank_pattern_, "rank_pattern", module, rank_));
  if (!(rank >= 1 && rank <= kLargestRank && rank == std::floor(rank))) {
    return absl::InvalidArgumentError(
        absl::StrCat(kLoraConfigFile, ": rank_pattern: ", rank, " is no rank (", module.canonical, ")"));
  }
  return static_cast<int32_t>(rank);
}

absl::StatusOr<double> LoraConfig::ScaleOf(const LoraModuleName& module, int32_t rank) const {
  ASSIGN_OR_RETURN(const double alpha, Lookup(alpha_pattern_, "alpha_pattern", module, alpha_));
  return alpha / (rank_stabilized_ ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
}

}  // namespace somnus
