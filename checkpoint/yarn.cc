#include "checkpoint/yarn.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace somnus {

double YarnAttentionScale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

void ExtendByYarn(ModelConfig* config) {
  const RopeConfig& rope = config->rope;
  if (rope.type != RopeConfig::Type::kYarn) return;
  const double extended = static_cast<double>(rope.original_max_position_embeddings) * rope.factor;
  constexpr double kMost = std::numeric_limits<int32_t>::max();
  config->max_position_embeddings =
      std::max(config->max_position_embeddings, static_cast<int32_t>(std::min(extended, kMost)));
}

}  // namespace somnus
