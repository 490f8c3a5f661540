#include "worker/model/rope_table.h"

#include <algorithm>
#include <cmath>

namespace somnus {
namespace {

// Llama 3.1: long wavelengths are slowed by `factor`, short wavelengths stay, wavelengths in between are
// blended.
double Llama3Frequency(const RopeConfig& rope, double frequency) {
  const double original_length = static_cast<double>(rope.original_max_position_embeddings);
  const double turns = original_length * frequency / (2 * M_PI);  // over the original context
  if (turns < rope.low_freq_factor) return frequency / rope.factor;
  if (turns > rope.high_freq_factor) return frequency;
  const double smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

// The number, with a fraction, of the pair that turns `turns` times over the original context.
double PairThatTurns(const RopeConfig& rope, double turns, double head_dim) {
  const double original_length = static_cast<double>(rope.original_max_position_embeddings);
  return head_dim * std::log(original_length / (turns * 2 * M_PI)) / (2 * std::log(rope.theta));
}

// YaRN (arXiv 2309.00071, section 3.2): fast pairs keep their frequency, slow pairs are slowed by `factor`,
// and pairs in between are blended.
double YarnFrequency(const RopeConfig& rope, double frequency, double pair, double head_dim) {
  double low = PairThatTurns(rope, rope.beta_fast, head_dim);
  double high = PairThatTurns(rope, rope.beta_slow, head_dim);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1);
  if (low == high) high += 0.001;
  const double slowed = std::clamp((pair - low) / (high - low), 0.0, 1.0);
  return frequency * (1 - slowed) + frequency / rope.factor * slowed;
}

}  // namespace

std::vector<double> RopeFrequencies(const RopeConfig& rope, int64_t head_dim, int64_t max_model_len) {
  if (rope.type == RopeConfig::Type::kNone) return {};
  std::vector<double> frequencies(head_dim / 2);  // the last are 0 where the rotation is partial
  const int64_t rotary_dim = rope.rotary_dim > 0 ? rope.rotary_dim : head_dim;
  const bool is_short = !rope.short_factors.empty() && max_model_len <= rope.original_max_position_embeddings;
  const std::vector<float>& factors = is_short ? rope.short_factors : rope.freq_factors;
  for (int64_t i = 0; i < rotary_dim / 2; ++i) {
    double frequency = std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
    if (rope.type == RopeConfig::Type::kLinear) frequency /= rope.factor;
    if (rope.type == RopeConfig::Type::kLlama3) frequency = Llama3Frequency(rope, frequency);
    if (rope.type == RopeConfig::Type::kYarn) {
      frequency = YarnFrequency(rope, frequency, static_cast<double>(i), static_cast<double>(rotary_dim));
    }
    if (!factors.empty()) frequency /= factors[i];
    frequencies[i] = frequency;
  }
  return frequencies;
}

void FillRopeTable(const std::vector<double>& frequencies, double scale, int64_t num_positions, float* cos,
                   float* sin) {
  // Turning by one position costs four multiplications, far less than a sine and a cosine, which counts at
  // 128 k positions; starting afresh every kStride positions keeps the error below 1e-13.
  constexpr int64_t kStride = 64;
  const int64_t width = static_cast<int64_t>(frequencies.size());
  std::vector<double> c(width), s(width), step_c(width), step_s(width), scales(width, scale);
  for (int64_t i = 0; i < width; ++i) {
    step_c[i] = std::cos(frequencies[i]);
    step_s[i] = std::sin(frequencies[i]);
    if (frequencies[i] == 0) scales[i] = 1;
  }
  for (int64_t position = 0; position < num_positions; ++position) {
    for (int64_t i = 0; i < width; ++i) {
      if (position % kStride == 0) {
        c[i] = std::cos(frequencies[i] * static_cast<double>(position));
        s[i] = std::sin(frequencies[i] * static_cast<double>(position));
      } else {
        const double next = c[i] * step_c[i] - s[i] * step_s[i];
        s[i] = s[i] * step_c[i] + c[i] * step_s[i];
        c[i] = next;
      }
      cos[position * width + i] = static_cast<float>(scales[i] * c[i]);
      sin[position * width + i] = static_cast<float>(scales[i] * s[i]);
    }
  }
}

void FillQueryScales(double temperature, int64_t original_positions, int64_t num_positions, float* scales) {
  for (int64_t position = 0; position < num_positions; ++position) {
    const auto lengths =
        static_cast<double>(position / original_positions);  // whole original contexts before
    scales[position] = static_cast<float>(1.0 + temperature * std::log1p(lengths));
  }
}

}  // namespace somnus
