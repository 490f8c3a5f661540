#pragma once
// How a model makes embeddings, by the files of sentence-transformers beside config.json: modules.json lists
// what follows the layers, and 1_Pooling/config.json says which hidden states an embedding is.

#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace somnus {

struct SentenceModules {
  enum class Pooling { kLast, kMean, kCls };
  Pooling pooling = Pooling::kLast;
  bool normalizes = false;  // embeddings have the length 1
  // A part of the model that this version does not support, such as "the module Dense"; empty: none.
  std::string missing;
};

// Nullopt: the directory has no modules.json. InvalidArgument: a file is damaged, and its name is in the
// message.
absl::StatusOr<std::optional<SentenceModules>> ReadSentenceModules(const std::string& directory);

}  // namespace somnus
