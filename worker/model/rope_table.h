#pragma once
// The cosines and sines of rotary position embedding (RoFormer, arXiv 2104.09864) with the rescalings that
// checkpoints ask for.

#include <cstdint>
#include <vector>

#include "checkpoint/model_config.h"

namespace somnus {

// Radians per position of each rotated pair: [head_dim / 2]; empty when there is no rotation.
std::vector<double> RopeFrequencies(const RopeConfig& rope, int64_t head_dim);

// Fills cos and sin, f32 [num_positions, frequencies.size()] each, times `scale`
// (RopeConfig::attention_factor).
void FillRopeTable(const std::vector<double>& frequencies, double scale, int64_t num_positions, float* cos,
                   float* sin);

}  // namespace somnus
