#pragma once
// Tensors that clients send in another form than models compute with: as one tensor of which the model has
// parts, of each slice the same parts. Files store some of these in the same way (fused_experts.h,
// latent_tensors.h). Plain data; thread safe.

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
  // The tensor is as many slices along its first dimension: one for each expert, or a single one.
  int64_t num_slices = 1;
  int64_t rows = 0, cols = 1;  // of a slice as a matrix
  std::vector<Part> parts;
};

// The name of a slice's part.
std::string PartName(const WholeTensor::Part& part, int64_t slice);

// All such tensors of a model of this configuration, by the names of Hugging Face's files and of
// transformers' modules.
std::vector<WholeTensor> WholeTensors(const ModelConfig& config);

}  // namespace somnus
