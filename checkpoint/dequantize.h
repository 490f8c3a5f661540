#pragma once
// Stored element types to fp32. Block layouts and arithmetic order follow ggml's reference dequantization, so
// that results have the same bits as from the `gguf` Python package. Pure functions; thread safe.

#include <cstdint>

#include "checkpoint/model_config.h"

namespace somnus {

// Converts `blocks` whole blocks (one element each for F32, F16, BF16) at `src`, which may be unaligned, into
// blocks * BlockSizeOf(type).elements floats.
void DequantizeBlocks(StorageType type, const uint8_t* src, int64_t blocks, float* out);

// Converts elements [begin, end) of the run of blocks at `src`; the bounds need not be multiples of the block
// size.
void DequantizeRange(StorageType type, const uint8_t* src, int64_t begin, int64_t end, float* out);

}  // namespace somnus
