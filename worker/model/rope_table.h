#pragma once
// The cosines and sines of rotary position embedding (RoFormer, arXiv 2104.09864) with the rescalings that
// checkpoints ask for.

#include <cstdint>
#include <vector>

#include "checkpoint/model_config.h"

namespace somnus {

// Radians per position of each rotated pair: [head_dim / 2]. `freq_factors` divides each one (GGUF's way to store the
// llama3 rescaling, in which case `rope` says kDefault); empty: none.
std::vector<double> RopeFrequencies(const RopeConfig& rope, int64_t head_dim, const std::vector<float>& freq_factors);

// Fills cos and sin, f32 [num_positions, frequencies.size()] each.
void FillRopeTable(const std::vector<double>& frequencies, int64_t num_positions, float* cos, float* sin);

}  // namespace somnus
