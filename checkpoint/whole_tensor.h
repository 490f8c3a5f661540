#pragma once
// Tensors of weight updates that the model holds in parts: a client sends one tensor, such as all experts of
// a layer, and the model has the same parts of each of its slices. Some files store tensors in this way, too
// (fused_experts.h, latent_tensors.h). Plain data; thread safe.

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"
#include "checkpoint/tensor_part.h"

namespace somnus {

struct WholeTensor {
  struct Part {
    std::string name;  // of the model's tensor; "*" stands for the slice's number
    TensorPart place;  // in the slice, without TensorPart::whole
  };

  std::string name;
  std::vector<int64_t> shape;
  // Slices along the first dimension: one for each expert, or a single slice.
  int64_t num_slices = 1;
  int64_t rows = 0, cols = 1;  // of a slice as a matrix
  std::vector<Part> parts;
};

// The name of a slice's part.
std::string PartName(const WholeTensor::Part& part, int64_t slice);

// All whole tensors of a model of this configuration, by the names of Hugging Face's files and of
// transformers' modules.
std::vector<WholeTensor> WholeTensors(const ModelConfig& config);

}  // namespace somnus
