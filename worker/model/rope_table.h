#pragma once
// The cosines and sines of rotary position embedding (RoFormer, arXiv 2104.09864) with the rescalings that
// checkpoints ask for.

#include <cstdint>
#include <vector>

#include "checkpoint/model_config.h"

namespace somnus {

// Radians per position of each pair of a head's dimensions: [head_dim / 2], 0 for pairs that do not rotate
// (RopeConfig::rotary_dim); empty when there is no rotation. max_model_len: no sequence is longer, which
// chooses between LongRoPE's two lists once, because keys in the cache stay as they were rotated.
std::vector<double> RopeFrequencies(const RopeConfig& rope, int64_t head_dim, int64_t max_model_len);

// Fills cos and sin, f32 [num_positions, frequencies.size()] each, times `scale`
// (RopeConfig::attention_factor), but for pairs that do not rotate, whose cos is 1.
void FillRopeTable(const std::vector<double>& frequencies, double scale, int64_t num_positions, float* cos,
                   float* sin);

// Fills scales, f32 [num_positions]: the factors of queries by position (ModelConfig::query_temperature).
void FillQueryScales(double temperature, int64_t original_positions, int64_t num_positions, float* scales);

}  // namespace somnus
