#pragma once
// The flags about embeddings. A value.

#include <optional>

#include "coordinator/request/pooling_options.h"

namespace somnus {

struct PoolingFlags {
  bool generates = true;                           // --runner
  std::optional<Pooling> type;                     // not set: as the checkpoint says, else the last token's
  std::optional<MatryoshkaDimensions> matryoshka;  // not set: as the checkpoint says
};

}  // namespace somnus
