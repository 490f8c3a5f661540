#pragma once
// The flags about embeddings. A value.

#include <optional>

#include "coordinator/request/pooling_options.h"

namespace somnus {

struct PoolingFlags {
  bool generates = true;  // --runner
  Pooling type = Pooling::kLast;
  std::optional<MatryoshkaDimensions> matryoshka;  // not set: as the checkpoint says
};

}  // namespace somnus
