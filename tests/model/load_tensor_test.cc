// A region that an update has filled, tensor by tensor, beside a region that a load has filled.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/model/weight_chunks.h"

namespace somnus {
namespace {

// Aligned for a plan, and zero.
class Region {
 public:
  explicit Region(int64_t bytes) : bytes_(bytes), memory_(static_cast<size_t>(bytes) + 256) {}
  void* data() { return memory_.data() + (256 - reinterpret_cast<uintptr_t>(memory_.data()) % 256) % 256; }
  std::string text() { return std::string(static_cast<const char*>(data()), static_cast<size_t>(bytes_)); }

 private:
  const int64_t bytes_;
  std::vector<char> memory_;
};

std::unique_ptr<Checkpoint> Open(const std::string& model) {
  auto checkpoint = Checkpoint::Open("tests/data/" + model);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return checkpoint.ok() ? *std::move(checkpoint) : nullptr;
}

// qwen2 and qwen3 are tied and opt has biases; llama-uneven's heads end within the panels of packed rows. The
// variants are stored otherwise than models compute: rows in another order, fused, norms less 1; or have
// experts.
TEST(LoadTensor, TensorByTensorIsBitForBitTheLoadOfAll) {
  for (const char* model :
       {"tiny/llama-uneven", "tiny/qwen2", "tiny/qwen3", "tiny/opt", "variants/phi3-longrope",
        "variants/glm4", "variants/gemma3", "variants/glm4-moe"}) {
    const std::unique_ptr<Checkpoint> checkpoint = Open(model);
    ASSERT_NE(checkpoint, nullptr);
    for (const CpuIsa isa : kCpuIsas) {
      auto device = Device::CreateCpu({.num_threads = 1, .isa = isa});
      if (!device.ok()) continue;  // this CPU lacks the instructions
      for (const RankPart part : {RankPart{0, 1, DataType::kF32}, RankPart{0, 1, DataType::kBF16},
                                  RankPart{0, 2, DataType::kBF16}, RankPart{1, 2, DataType::kBF16},
                                  RankPart{1, 2, DataType::kF32}, RankPart{2, 3, DataType::kF16}}) {
        SCOPED_TRACE(absl::StrCat(model, " on ", CpuIsaName(isa), ", rank ", part.rank, " of ",
                                  part.world_size, ", type ", static_cast<int>(part.dtype)));
        const auto plan = PlanOf(*checkpoint, part, **device);
        ASSERT_TRUE(plan.ok()) << plan.status();
        Region loaded(plan->region_bytes()), updated(plan->region_bytes());
        ASSERT_EQ(FillByLoad(*checkpoint, part, **device, loaded.data()), absl::OkStatus());
        ASSERT_EQ(
            FillByUpdate(checkpoint->config(), ChunksOf(*checkpoint, 1000), part, **device, updated.data()),
            absl::OkStatus());
        EXPECT_TRUE(loaded.text() == updated.text());
      }
    }
  }
}

// The same numbers sent in a different type make the same region.
TEST(LoadTensor, TheTypeThatIsSentLeavesNoTrace) {
  const std::unique_ptr<Checkpoint> checkpoint = Open("tiny/qwen3");
  ASSERT_NE(checkpoint, nullptr);
  auto device = Device::CreateCpu({.num_threads = 1});
  ASSERT_TRUE(device.ok()) << device.status();
  const RankPart part{1, 2, DataType::kBF16};
  const auto plan = PlanOf(*checkpoint, part, **device);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::string first;
  for (const v1::WeightDType dtype :
       {v1::WEIGHT_DTYPE_FLOAT32, v1::WEIGHT_DTYPE_BFLOAT16, v1::WEIGHT_DTYPE_FLOAT16}) {
    std::vector<v1::WeightChunk> chunks = ChunksOf(*checkpoint, 1 << 30);
    for (v1::WeightChunk& chunk : chunks) {
      int64_t count = 1;
      for (const int64_t size : chunk.shape()) count *= size;
      std::string data;
      for (int64_t i = 0; i < count; ++i) {
        // -1, 0 and 1, which are alike in float32, bfloat16 and float16 but for the exponent's bits.
        const int value = static_cast<int>((i * 7 + count) % 3) - 1;
        const float number = static_cast<float>(value);
        uint32_t bits;
        std::memcpy(&bits, &number, 4);
        const auto bf16 = static_cast<uint16_t>(bits >> 16);
        const uint16_t f16 = value == 0 ? 0 : value > 0 ? 0x3c00 : 0xbc00;
        if (dtype == v1::WEIGHT_DTYPE_FLOAT32) data.append(reinterpret_cast<const char*>(&bits), 4);
        if (dtype == v1::WEIGHT_DTYPE_BFLOAT16) data.append(reinterpret_cast<const char*>(&bf16), 2);
        if (dtype == v1::WEIGHT_DTYPE_FLOAT16) data.append(reinterpret_cast<const char*>(&f16), 2);
      }
      chunk.set_dtype(dtype);
      chunk.set_data(data);
    }
    Region region(plan->region_bytes());
    ASSERT_EQ(FillByUpdate(checkpoint->config(), chunks, part, **device, region.data()), absl::OkStatus());
    if (first.empty()) first = region.text();
    EXPECT_TRUE(region.text() == first) << v1::WeightDType_Name(dtype);
    EXPECT_NE(first, std::string(first.size(), '\0'));
  }
}

}  // namespace
}  // namespace somnus
