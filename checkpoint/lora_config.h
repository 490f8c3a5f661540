#pragma once
// The adapter_config.json of a LoRA adapter that PEFT has saved: ranks, scales and the modules that the
// adapter is for. Plain data after Parse; thread safe to read.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace somnus {

inline constexpr char kLoraConfigFile[] = "adapter_config.json";

class LoraConfig {
 public:
  // InvalidArgument names the key; Unimplemented names the key of what is not LoRA's plain form: DoRA,
  // trained biases, modules saved whole, and the like.
  static absl::StatusOr<LoraConfig> Parse(absl::string_view text);

  // The rank of the module, by the model's name of the module ("model.layers.0.self_attn.q_proj").
  // InvalidArgument: keys of rank_pattern contradict each other.
  absl::StatusOr<int32_t> RankOf(absl::string_view module) const;
  // The factor of B * A for a module of that rank; the keys of alpha_pattern are matched as in RankOf.
  absl::StatusOr<double> ScaleOf(absl::string_view module, int32_t rank) const;
  // The entries of target_modules, without the prefixes of wrappers, if target_modules is a list; empty where
  // it is "all-linear" or a regular expression, which the tensors then decide.
  const std::vector<std::string>& targets() const { return targets_; }

 private:
  using Pattern = std::map<std::string, double>;  // by the last parts of modules' names

  double alpha_ = 0;
  int32_t rank_ = 0;
  bool rank_stabilized_ = false;
  Pattern rank_pattern_, alpha_pattern_;
  std::vector<std::string> targets_;
};

// Whether `module` is named by `key` as PEFT matches names: equal, or, but for a key that begins with "^",
// equal from a "." on.
bool NamesModule(absl::string_view key, absl::string_view module);

}  // namespace somnus
