// Against values that the `gguf` Python package computed (tests/data/make_gguf_goldens.py): equal bit for
// bit.

#include "checkpoint/dequantize.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "checkpoint/tensor_table.h"
#include "tests/checkpoint/writers.h"

namespace somnus {
namespace {

struct Golden {
  StorageType type;
  std::string data;
  std::vector<float> values;
};

const std::map<std::string, StorageType>& TypeNames() {
  static const auto* const kNames = new std::map<std::string, StorageType>{
      {"F16", StorageType::kF16},       {"BF16", StorageType::kBF16},  {"Q8_0", StorageType::kQ8_0},
      {"Q4_0", StorageType::kQ4_0},     {"Q4_1", StorageType::kQ4_1},  {"Q5_0", StorageType::kQ5_0},
      {"Q5_1", StorageType::kQ5_1},     {"Q4_K", StorageType::kQ4_K},  {"Q5_K", StorageType::kQ5_K},
      {"Q6_K", StorageType::kQ6_K},     {"Q2_K", StorageType::kQ2_K},  {"Q3_K", StorageType::kQ3_K},
      {"IQ4_NL", StorageType::kIQ4_NL}, {"MXFP4", StorageType::kMXFP4}};
  return *kNames;
}

std::vector<Golden> ReadGoldens() {
  const std::string file = ReadFile("tests/data/gguf/quants.bin");
  std::vector<Golden> goldens;
  for (size_t pos = 0; pos < file.size();) {
    uint32_t elements, bytes;
    const std::string name = file.substr(pos, 8).c_str();
    std::memcpy(&elements, file.data() + pos + 8, 4);
    std::memcpy(&bytes, file.data() + pos + 12, 4);
    Golden golden{TypeNames().at(name), file.substr(pos + 16, bytes), std::vector<float>(elements)};
    std::memcpy(golden.values.data(), file.data() + pos + 16 + bytes, elements * sizeof(float));
    pos += 16 + bytes + elements * sizeof(float);
    goldens.push_back(std::move(golden));
  }
  return goldens;
}

// Compares bits, so that infinities and signed zeros count too.
uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

const uint8_t* Bytes(const std::string& text) { return reinterpret_cast<const uint8_t*>(text.data()); }

TEST(Dequantize, EqualsTheReferenceForEveryType) {
  const std::vector<Golden> goldens = ReadGoldens();
  ASSERT_EQ(goldens.size(), TypeNames().size());
  for (const Golden& golden : goldens) {
    const BlockSize block = BlockSizeOf(golden.type);
    ASSERT_EQ(golden.data.size() / block.bytes * block.elements, golden.values.size());
    std::vector<float> out(golden.values.size());
    DequantizeBlocks(golden.type, Bytes(golden.data), out.size() / block.elements, out.data());
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(Bits(out[i]), Bits(golden.values[i])) << StorageTypeName(golden.type) << " element " << i;
    }
  }
}

TEST(Dequantize, AnyRangeAtAnyAlignment) {
  std::mt19937 rng(7);
  for (const Golden& golden : ReadGoldens()) {
    const std::string shifted = "x" + golden.data;
    const int64_t n = golden.values.size();
    for (int round = 0; round < 200; ++round) {
      const int64_t begin = rng() % (n + 1), end = begin + rng() % (n - begin + 1);
      std::vector<float> out(end - begin + 1, -77.0f);
      DequantizeRange(golden.type, Bytes(shifted) + 1, begin, end, out.data());
      for (int64_t i = begin; i < end; ++i) ASSERT_EQ(Bits(out[i - begin]), Bits(golden.values[i]));
      ASSERT_EQ(out.back(), -77.0f);  // nothing beyond the range
    }
  }
}

TEST(Dequantize, EveryHalfIsRight) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const std::string bytes = Encode(static_cast<uint16_t>(half));
    float out = 0;
    DequantizeBlocks(StorageType::kF16, Bytes(bytes), 1, &out);
    const int exponent = (half >> 10) & 31, mantissa = half & 1023;
    if (exponent == 31 && mantissa != 0) {
      EXPECT_TRUE(std::isnan(out));
      continue;
    }
    double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (exponent == 31) value = INFINITY;
    ASSERT_EQ(Bits(out), Bits(static_cast<float>(half & 0x8000 ? -value : value))) << half;
  }
}

}  // namespace
}  // namespace somnus
