#pragma once
// Mixtures of experts: layers whose MLP is one of many, chosen for each token by a router (Switch
// Transformers, arXiv 2101.03961; Mixtral, arXiv 2401.04088; DeepSeek V3, arXiv 2412.19437).

#include <cstdint>
#include <vector>

namespace somnus {

// What the router makes of its logits before the best experts are chosen.
enum class RouterScore {
  kSoftmax,  // over all experts
  kSigmoid   // of each expert by itself
};

// Bounds of a configuration; kernels have tables of these sizes.
inline constexpr int32_t kMaxRoutedExperts = 1024;
inline constexpr int32_t kMaxRoutedPerToken = 32;

// Plain data. A token's output is the sum of its experts' outputs, each times the token's weight for that
// expert, and of the shared expert's output.
struct ExpertsConfig {
  int32_t num_experts = 0;   // routed experts; 0: every layer has one MLP
  int32_t per_token = 0;     // experts of a token
  int32_t expert_size = 0;   // intermediate size of an expert
  int32_t shared_size = 0;   // intermediate size of the shared experts together; 0: none
  bool shared_gate = false;  // the shared expert's output is multiplied by the sigmoid of a logit of its own
  RouterScore score = RouterScore::kSoftmax;
  // The chosen experts' scores are divided by their sum. With kSoftmax the weights are then the softmax of
  // the chosen experts' logits alone (GPT-OSS).
  bool renormalize = false;
  double scale = 1;  // of the weights: routed_scaling_factor
  // A number of each expert is added to the expert's score for the choice alone: e_score_correction_bias.
  bool correction = false;
  // Experts lie in so many groups of equal size; only experts of the best `top_groups` groups are chosen, by
  // the sum of a group's two best scores.
  int32_t num_groups = 1;
  int32_t top_groups = 1;
  std::vector<uint8_t> layers;  // [num_layers]: 1 where a layer has experts; empty: every layer

  bool operator==(const ExpertsConfig&) const = default;
};

}  // namespace somnus
