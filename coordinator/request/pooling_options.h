#pragma once
// How a served model makes embeddings. Plain data.

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/request/request.h"

namespace somnus {

// The numbers of dimensions that a request may ask for, beside the model's own. Only a model that was trained
// so (Matryoshka representation learning, arXiv 2205.13147) has its meaning in the first numbers of a vector.
struct MatryoshkaDimensions {
  bool any = false;             // every number up to the model's own
  std::vector<int32_t> listed;  // otherwise these
};

struct PoolingOptions {
  bool generates = true;  // --runner=generate; false: requests for text are refused
  Pooling type = Pooling::kLast;
  bool normalizes = true;  // unless a request says otherwise
  // Why the model's embeddings cannot be made, for clients; empty: they can.
  std::string problem;
  MatryoshkaDimensions matryoshka;
};

}  // namespace somnus
