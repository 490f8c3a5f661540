#pragma once
// The adapter_config.json of a LoRA adapter that PEFT has saved: ranks, scales and the modules that the
// adapter is for. Plain data after Parse; thread safe to read.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/module_pattern.h"

namespace somnus {

class JsonFields;

inline constexpr char kLoraConfigFile[] = "adapter_config.json";

class LoraConfig {
 public:
  // InvalidArgument names the key; Unimplemented names the key of what is not LoRA's plain form: DoRA,
  // trained biases, modules saved whole, and the like.
  static absl::StatusOr<LoraConfig> Parse(absl::string_view text);

  // The rank of the module: of the first key of rank_pattern that matches, in the file's order, as in PEFT.
  // InvalidArgument: the value is no rank, or a regular expression takes too many steps.
  absl::StatusOr<int32_t> RankOf(const LoraModuleName& module) const;
  // The factor of B * A for a module of that rank; the keys of alpha_pattern are matched as in RankOf.
  absl::StatusOr<double> ScaleOf(const LoraModuleName& module, int32_t rank) const;
  // The entries of target_modules, without the prefixes of wrappers, if target_modules is a list; empty where
  // it is "all-linear" or a regular expression, which the tensors then decide.
  const std::vector<std::string>& targets() const { return targets_; }

 private:
  using Pattern = std::vector<std::pair<ModulePattern, double>>;  // in the file's order

  static absl::StatusOr<Pattern> ReadPattern(const JsonFields& fields, const char* key,
                                             const nlohmann::ordered_json& entries);
  // The value of the first key that matches, `otherwise` where none does.
  static absl::StatusOr<double> Lookup(const Pattern& pattern, const char* key, const LoraModuleName& module,
                                       double otherwise);

  double alpha_ = 0;
  int32_t rank_ = 0;
  bool rank_stabilized_ = false;
  Pattern rank_pattern_, alpha_pattern_;
  std::vector<std::string> targets_;
};

}  // namespace somnus
