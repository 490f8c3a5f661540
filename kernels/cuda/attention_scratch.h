#pragma once
// The data that decode leaves for the kernel that adds up the parts of cut contexts. Internal to
// attention_decode.cu and attention_combine.cu.

#include "kernels/cuda/attention_params.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

// Left by block b for the second kernel: whether a context's parts begin in block b - 1 and go on in b, in
// how many blocks altogether (0: nothing to do), and which row and KV head the parts belong to.
struct DecodeRecord {
  int32_t parts;
  int32_t row;                 // of q and out
  int32_t heads[kDecodeRows];  // -1: none
};
static_assert(sizeof(DecodeRecord) <= DecodeScratch::kRecordBytes);

// Slot 0 of a block holds a piece that begins within a context, slot 1 a piece that only ends within.
struct PartsScratch {
  char* memory;
  int dims;
  int64_t slots_offset, slot_bytes;

  PartsScratch(char* memory, const DecodeScratch& layout)
      : memory(memory),
        dims(static_cast<int>(layout.dims)),
        slots_offset(layout.slots_offset()),
        slot_bytes(layout.slot_bytes()) {}
  __device__ DecodeRecord& Record(int64_t block) const {
    return *reinterpret_cast<DecodeRecord*>(memory + block * DecodeScratch::kRecordBytes);
  }
  // [kDecodeRows][dims] sums, then [kDecodeRows] maxima, then [kDecodeRows] sums of weights.
  __device__ float* Slot(int64_t block, int slot) const {
    return reinterpret_cast<float*>(memory + slots_offset + (block * 2 + slot) * slot_bytes);
  }
};

// Writes the output of cut contexts, after a decode of `blocks` blocks with this scratch.
void CombineParts(CudaDevice& device, DataType act, const AttentionParams& params,
                  const PartsScratch& scratch, unsigned blocks);

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
