#pragma once
// One block of a quantized weight as plain numbers: the common form of GGUF's blocks and the panels' columns
// (quantized_layout.h).

#include <cstdint>

#include "kernels/tensor.h"

namespace somnus::cpu {

struct QuantBlockNumbers {
  uint16_t d = 0;            // f16, or MXFP4's exponent
  uint16_t m = 0;            // f16
  uint8_t scales[16] = {};   // one for each part of a sub-block that has a scale of its own, as stored
  uint8_t minima[16] = {};   // as stored, for each part that has a minimum
  uint8_t values[256] = {};  // unsigned, or indices
};

// Reads GGUF's block of QuantBlockBytes(type) bytes.
void ReadStoredBlock(DataType type, const uint8_t* from, QuantBlockNumbers* numbers);

// Column `column` of a panel's block.
void WriteColumn(DataType type, const QuantBlockNumbers& numbers, int64_t column, uint8_t* block);
void ReadColumn(DataType type, const uint8_t* block, int64_t column, QuantBlockNumbers* numbers);

// out[0, QuantBlockValues(type)) = the values that the numbers stand for.
void BlockToFloats(DataType type, const QuantBlockNumbers& numbers, float* out);

}  // namespace somnus::cpu
