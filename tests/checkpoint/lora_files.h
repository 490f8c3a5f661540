#pragma once
// Writes LoRA adapters for tests in PEFT's format, and the checkpoint with the adapter merged into its
// weights: W + scale * B * A, in f32.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace somnus {

struct LoraRecipe {
  int32_t rank = 2;
  double alpha = 4;
  bool rank_stabilized = false;
  std::map<std::string, int32_t> rank_pattern;  // by module
  std::map<std::string, double> alpha_pattern;
  std::vector<std::string> targets;  // the last parts of modules' names; empty: every matrix of the layers
  uint32_t seed = 1;
  float magnitude = 0.2f;   // of the random numbers of A and B
  bool all_linear = false;  // target_modules is "all-linear", not a list
};

// Writes adapter_config.json and adapter_model.safetensors into a new directory, and returns the directory.
std::string WriteLora(const Checkpoint& base, const LoraRecipe& recipe);
// Writes the checkpoint of `base_path` with the adapter merged, and returns the checkpoint's directory.
std::string WriteMerged(const std::string& base_path, const Checkpoint& base, const LoraRecipe& recipe);

}  // namespace somnus
