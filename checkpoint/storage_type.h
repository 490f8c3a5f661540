#pragma once
// The properties of each type that tensors are stored in: one table for the readers, the messages and the
// conversions.

#include <cstdint>
#include <iterator>

#include "checkpoint/model_config.h"

namespace somnus {

// Elements and bytes of one block of a type; plain types have blocks of one element.
struct BlockSize {
  int64_t elements;
  int64_t bytes;
};

// The ggml type of a type that GGUF files do not have.
inline constexpr uint32_t kNoGgmlType = 0xffffffff;

struct StorageTypeInfo {
  StorageType type;
  const char* name;
  uint32_t ggml_type;  // the number of ggml's enum, which GGUF files have
  BlockSize block;
};

// By StorageType.
inline constexpr StorageTypeInfo kStorageTypeInfos[] = {
    {StorageType::kF32, "F32", 0, {1, 4}},          {StorageType::kF16, "F16", 1, {1, 2}},
    {StorageType::kBF16, "BF16", 30, {1, 2}},       {StorageType::kQ8_0, "Q8_0", 8, {32, 34}},
    {StorageType::kQ4_0, "Q4_0", 2, {32, 18}},      {StorageType::kQ4_1, "Q4_1", 3, {32, 20}},
    {StorageType::kQ5_0, "Q5_0", 6, {32, 22}},      {StorageType::kQ5_1, "Q5_1", 7, {32, 24}},
    {StorageType::kIQ4_NL, "IQ4_NL", 20, {32, 18}}, {StorageType::kMXFP4, "MXFP4", 39, {32, 17}},
    {StorageType::kQ2_K, "Q2_K", 10, {256, 84}},    {StorageType::kQ3_K, "Q3_K", 11, {256, 110}},
    {StorageType::kQ4_K, "Q4_K", 12, {256, 144}},   {StorageType::kQ5_K, "Q5_K", 13, {256, 176}},
    {StorageType::kQ6_K, "Q6_K", 14, {256, 210}},   {StorageType::kF8E4M3, "F8_E4M3", kNoGgmlType, {32, 36}},
};

constexpr const StorageTypeInfo& InfoOf(StorageType type) {
  return kStorageTypeInfos[static_cast<int>(type)];
}
constexpr BlockSize BlockSizeOf(StorageType type) { return InfoOf(type).block; }
constexpr const char* StorageTypeName(StorageType type) { return InfoOf(type).name; }

constexpr bool InfosAreByType() {
  for (size_t i = 0; i < std::size(kStorageTypeInfos); ++i) {
    if (static_cast<size_t>(kStorageTypeInfos[i].type) != i) return false;
  }
  return true;
}
static_assert(InfosAreByType());

}  // namespace somnus
