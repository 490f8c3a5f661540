#pragma once
// GGUF files of random quantized weights, for tests of models that are computed in the stored types.

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "checkpoint/model_config.h"

namespace somnus {

struct QuantizedGguf {
  // The types of the layers' matrices, and of the embedding, which the head is tied to.
  StorageType layers = StorageType::kQ4_1;
  StorageType embedding = StorageType::kQ8_0;
  // The types of the values' projection and of the gate, where different from the other matrices.
  std::optional<StorageType> values = {};
  std::optional<StorageType> gate = {};
  // Multiples of the types' blocks.
  int hidden = 128;
  int intermediate = 192;
  std::optional<int> head_dim = {};  // where not a quarter of the hidden size
  int vocab = 512;
  uint32_t seed = 1;

  auto operator<=>(const QuantizedGguf&) const = default;
};

// Writes a llama of two layers, four heads and two KV heads into a new folder; returns the file's path.
// Weights have the magnitude that keeps a model's activations in range.
std::string WriteQuantizedGguf(const QuantizedGguf& model);

}  // namespace somnus
