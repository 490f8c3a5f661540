#pragma once
// Mixtures of experts: layers with many MLPs, the experts, of which a router chooses a few for each token
// (Switch Transformers, arXiv 2101.03961; Mixtral, arXiv 2401.04088; DeepSeek V3, arXiv 2412.19437).

#include <cstdint>
#include <vector>

namespace somnus {

// How experts' scores are computed from the router's logits. The experts with the best scores are chosen.
enum class RouterScore {
  kSoftmax,  // over all experts
  kSigmoid   // of each expert's logit
};

// Bounds of a configuration. The kernels' tables have room for as many (worker/model/experts_mlp.cc).
inline constexpr int32_t kMaxRoutedExperts = 1024;
inline constexpr int32_t kMaxRoutedPerToken = 32;

// Plain data. A token's output is the sum of its experts' outputs, each times the token's weight for that
// expert, and of the shared expert's output.
struct ExpertsConfig {
  int32_t num_experts = 0;   // routed experts; 0: all layers have a plain MLP
  int32_t per_token = 0;     // experts of a token
  int32_t expert_size = 0;   // intermediate size of an expert
  int32_t shared_size = 0;   // intermediate size of the shared experts together; 0: none
  bool shared_gate = false;  // the shared expert's output is multiplied by the sigmoid of a further logit
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
