// Tensors that are parts of larger stored tensors: the matrices of latent attention, and GPT-OSS's experts.

#include "checkpoint/tensor_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/dequantize.h"
#include "checkpoint/storage_type.h"

namespace somnus {
namespace {

std::unique_ptr<Checkpoint> Open(const std::string& variant) {
  auto checkpoint = Checkpoint::Open("tests/data/variants/" + variant);
  EXPECT_TRUE(checkpoint.ok()) << variant << ": " << checkpoint.status();
  return checkpoint.ok() ? *std::move(checkpoint) : nullptr;
}

int64_t Columns(const TensorInfo& tensor) { return tensor.shape.size() == 1 ? 1 : tensor.shape[1]; }

std::vector<float> Read(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.shape[0] * Columns(tensor)));
  const absl::Status read =
      checkpoint.ReadRows(tensor, 0, tensor.shape[0], 0, Columns(tensor), values.data());
  EXPECT_TRUE(read.ok()) << read;
  return values;
}

// Any rectangle has the values of the whole, and the stored bytes of a rectangle of whole blocks are the same
// values.
void ExpectRectangles(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  SCOPED_TRACE(tensor.name);
  const std::vector<float> whole = Read(checkpoint, tensor);
  const int64_t rows = tensor.shape[0], cols = Columns(tensor);
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    const int64_t r0 = static_cast<int64_t>(random() % rows), c0 = static_cast<int64_t>(random() % cols);
    const int64_t r1 = r0 + 1 + static_cast<int64_t>(random() % (rows - r0));
    const int64_t c1 = c0 + 1 + static_cast<int64_t>(random() % (cols - c0));
    std::vector<float> part(static_cast<size_t>((r1 - r0) * (c1 - c0)));
    ASSERT_TRUE(checkpoint.ReadRows(tensor, r0, r1, c0, c1, part.data()).ok());
    size_t at = 0;
    for (int64_t r = r0; r < r1; ++r) {
      for (int64_t c = c0; c < c1; ++c, ++at) ASSERT_EQ(part[at], whole[r * cols + c]) << r << ", " << c;
    }
    const BlockSize block = BlockSizeOf(tensor.type);
    if (cols % block.elements != 0) continue;
    std::vector<uint8_t> stored(static_cast<size_t>((r1 - r0) * cols / block.elements * block.bytes));
    ASSERT_TRUE(checkpoint.ReadStoredRows(tensor, r0, r1, 0, cols, stored.data()).ok());
    std::vector<float> values(static_cast<size_t>((r1 - r0) * cols));
    DequantizeRange(tensor.type, stored.data(), 0, (r1 - r0) * cols, values.data());
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], whole[r0 * cols + i]) << "stored " << i;
  }
}

TEST(TensorPart, KeysAndValuesOfHeadsAreRowsOfOneMatrix) {
  for (const std::string variant : {"deepseek-latent", "deepseek-latent-halves"}) {
    const auto checkpoint = Open(variant);
    ASSERT_NE(checkpoint, nullptr);
    const LatentConfig& latent = checkpoint->config().latent;
    const std::string prefix = "model.layers.1.self_attn.";
    const TensorInfo* const both = checkpoint->Find(prefix + "kv_b_proj.weight");
    const TensorInfo* const keys = checkpoint->Find(prefix + "k_b_proj.weight");
    const TensorInfo* const values = checkpoint->Find(prefix + "v_b_proj.weight");
    ASSERT_TRUE(both != nullptr && keys != nullptr && values != nullptr);
    ExpectRectangles(*checkpoint, *keys);
    ExpectRectangles(*checkpoint, *values);
    const std::vector<float> all = Read(*checkpoint, *both), k = Read(*checkpoint, *keys),
                             v = Read(*checkpoint, *values);
    for (int64_t head = 0; head < checkpoint->config().num_heads; ++head) {
      const int64_t first = head * (latent.nope + latent.value);
      for (int64_t r = 0; r < latent.rank; ++r) {
        for (int64_t d = 0; d < latent.nope; ++d)
          ASSERT_EQ(k[(head * latent.rank + r) * latent.nope + d], all[(first + d) * latent.rank + r]);
        for (int64_t d = 0; d < latent.value; ++d) {
          ASSERT_EQ(v[(head * latent.value + d) * latent.rank + r],
                    all[(first + latent.nope + d) * latent.rank + r]);
        }
      }
    }
  }
}

// Expert e's rows of gate and up alternate, in the columns of [experts, inputs, 2 * width].
TEST(TensorPart, ExpertsAreColumnsOfOneTensor) {
  const auto checkpoint = Open("gpt-oss");
  ASSERT_NE(checkpoint, nullptr);
  const std::string prefix = "model.layers.1.mlp.experts.";
  const TensorInfo* const fused = checkpoint->Find(prefix + "gate_up_proj");
  ASSERT_NE(fused, nullptr);
  const auto* const stored = reinterpret_cast<const float*>(fused->data);
  const int64_t hidden = fused->shape[1], columns = fused->shape[2];
  for (const std::string name : {"3.gate_proj", "3.up_proj", "4.down_proj"}) {
    for (const char* suffix : {".weight", ".bias"}) {
      const TensorInfo* const part = checkpoint->Find(prefix + name + suffix);
      ASSERT_NE(part, nullptr) << name << suffix;
      ExpectRectangles(*checkpoint, *part);
    }
  }
  for (const int64_t up : {0, 1}) {
    const TensorInfo* const part =
        checkpoint->Find(prefix + (up == 0 ? "3.gate_proj" : "3.up_proj") + ".weight");
    const std::vector<float> values = Read(*checkpoint, *part);
    for (int64_t r = 0; r < columns / 2; ++r) {
      for (int64_t c = 0; c < hidden; ++c) {
        float want;
        std::memcpy(&want, stored + (3 * hidden + c) * columns + 2 * r + up, sizeof(want));
        ASSERT_EQ(values[r * hidden + c], want);
      }
    }
  }
}

// The blocks of GGUF's files, from bytes with neighbours in a byte and exponents apart.
TEST(TensorPart, ExpertsOfMxfp4AreBlocks) {
  const auto checkpoint = Open("gpt-oss-mxfp4");
  ASSERT_NE(checkpoint, nullptr);
  const std::string prefix = "model.layers.0.mlp.experts.";
  for (const std::string name : {"0.gate_proj", "2.up_proj", "4.down_proj"}) {
    const TensorInfo* const part = checkpoint->Find(prefix + name + ".weight");
    ASSERT_NE(part, nullptr) << name;
    EXPECT_EQ(part->type, StorageType::kMXFP4);
    ExpectRectangles(*checkpoint, *part);
  }
  const std::vector<float> values = Read(*checkpoint, *checkpoint->Find(prefix + "0.gate_proj.weight"));
  for (const float value : values) {  // a power of two times a value of e2m1
    int exponent;
    const float mantissa = std::fabs(std::frexp(value, &exponent));
    ASSERT_TRUE(mantissa == 0 || mantissa == 0.5f || mantissa == 0.75f) << value;
  }
}

}  // namespace
}  // namespace somnus
