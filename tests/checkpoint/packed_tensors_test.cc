// Checkpoints of GPTQ, AWQ, compressed-tensors and fp8: values beside those of an oracle in Python, blocks
// beside the values, and damaged files.

#include "checkpoint/packed_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "checkpoint/dequantize.h"
#include "checkpoint/fingerprint.h"
#include "checkpoint/storage_type.h"
#include "tests/checkpoint/packed_weights.h"

namespace somnus {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kKey[] = "model.layers.0.self_attn.k_proj.weight";
constexpr char kDown[] = "model.layers.0.mlp.down_proj.weight";
const std::string kKeyParts = "model.layers.0.self_attn.k_proj.";

std::unique_ptr<Checkpoint> Open(const std::string& path) {
  auto checkpoint = Checkpoint::Open(path);
  EXPECT_TRUE(checkpoint.ok()) << path << ": " << checkpoint.status();
  return checkpoint.ok() ? *std::move(checkpoint) : nullptr;
}

std::vector<float> ReadAll(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.shape[0] * tensor.shape[1]));
  const absl::Status read =
      checkpoint.ReadRows(tensor, 0, tensor.shape[0], 0, tensor.shape[1], values.data());
  EXPECT_TRUE(read.ok()) << read;
  return values;
}

absl::StatusOr<std::vector<uint8_t>> ReadBlocks(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  const BlockSize block = BlockSizeOf(tensor.type);
  std::vector<uint8_t> stored(
      static_cast<size_t>(tensor.shape[0] * tensor.shape[1] / block.elements * block.bytes));
  const absl::Status read =
      checkpoint.ReadStoredRows(tensor, 0, tensor.shape[0], 0, tensor.shape[1], stored.data());
  if (!read.ok()) return read;
  return stored;
}

TEST(PackedTensors, AreTheValuesOfTheOracle) {
  for (const auto& [name, type] : PackedGoldens()) {
    SCOPED_TRACE(name);
    const auto checkpoint = Open(PackedGolden(name));
    ASSERT_NE(checkpoint, nullptr);
    Safetensors expected = ReadSafetensorsFile(PackedGolden(name) + "/values.safetensors");
    for (const char* tensor_name : {kKey, kDown}) {
      const TensorInfo* tensor = checkpoint->Find(tensor_name);
      ASSERT_NE(tensor, nullptr);
      EXPECT_EQ(tensor->type, type);
      const std::vector<float> values = ReadAll(*checkpoint, *tensor);
      const int64_t cols = tensor->shape[1], num_rows = expected.header[tensor_name]["shape"][0];
      ASSERT_EQ(num_rows * 8, tensor->shape[0]);
      for (int64_t row = 0; row < num_rows; ++row) {
        EXPECT_EQ(std::memcmp(&values[row * 8 * cols], expected.At(tensor_name, row * cols * 4), cols * 4), 0)
            << tensor_name << " row " << row * 8;
      }
    }
  }
}

TEST(PackedTensors, AnyRectangle) {
  for (const auto& [name, type] : PackedGoldens()) {
    SCOPED_TRACE(name);
    const auto checkpoint = Open(PackedGolden(name));
    ASSERT_NE(checkpoint, nullptr);
    const TensorInfo* tensor = checkpoint->Find(kDown);
    const std::vector<float> all = ReadAll(*checkpoint, *tensor);
    const int64_t row_begin = 3, row_end = 62, col_begin = 29, col_end = 71;
    std::vector<float> part(static_cast<size_t>((row_end - row_begin) * (col_end - col_begin)));
    ASSERT_TRUE(checkpoint->ReadRows(*tensor, row_begin, row_end, col_begin, col_end, part.data()).ok());
    const float* got = part.data();
    for (int64_t row = row_begin; row < row_end; ++row) {
      for (int64_t col = col_begin; col < col_end; ++col) ASSERT_EQ(*got++, all[row * 96 + col]) << row;
    }
    EXPECT_FALSE(checkpoint->ReadRows(*tensor, 0, 65, 0, 96, part.data()).ok());
    if (type == StorageType::kF32) continue;
    EXPECT_FALSE(checkpoint->ReadStoredRows(*tensor, 0, 1, 16, 48, part.data()).ok()) << "cuts a block";
  }
}

// The rows of queries and keys whose rotary embedding is partial, of neighbours, or both (head_order.h).
TEST(PackedTensors, HeadsInCanonicalOrder) {
  for (const auto& [name, type] : PackedGoldens()) {
    SCOPED_TRACE(name);
    const auto checkpoint = Open(PackedGolden(name));
    ASSERT_NE(checkpoint, nullptr);
    const TensorInfo& stored = *checkpoint->Find("model.layers.0.self_attn.q_proj.weight");
    const int64_t rows = stored.shape[0], cols = stored.shape[1];
    const std::vector<float> all = ReadAll(*checkpoint, stored);
    const bool has_blocks = type != StorageType::kF32;
    const std::vector<uint8_t> blocks =
        has_blocks ? *ReadBlocks(*checkpoint, stored) : std::vector<uint8_t>();
    for (const HeadOrder& heads :
         {HeadOrder{16, 8, false, rows}, HeadOrder{32, 32, true, rows - 32}, HeadOrder{32, 12, true, rows}}) {
      TensorInfo tensor = stored;
      tensor.heads = heads;
      const int64_t begin = 5, end = rows - 3;  // cuts heads
      std::vector<float> values(static_cast<size_t>((end - begin) * cols));
      ASSERT_TRUE(checkpoint->ReadRows(tensor, begin, end, 0, cols, values.data()).ok());
      std::vector<uint8_t> got(blocks.size());
      if (has_blocks) ASSERT_TRUE(checkpoint->ReadStoredRows(tensor, begin, end, 0, cols, got.data()).ok());
      const size_t row_bytes = blocks.size() / static_cast<size_t>(rows);
      for (int64_t row = begin; row < end; ++row) {
        const int64_t from = StoredRow(heads, row);
        EXPECT_EQ(std::memcmp(&values[(row - begin) * cols], &all[from * cols], cols * 4), 0) << row;
        if (has_blocks) {
          EXPECT_EQ(std::memcmp(&got[(row - begin) * row_bytes], &blocks[from * row_bytes], row_bytes), 0)
              << row;
        }
      }
    }
  }
}

TEST(PackedTensors, BlocksAreExactWithoutZeroPointsAndNearlySoWithThem) {
  for (const auto& [name, type] : PackedGoldens()) {
    SCOPED_TRACE(name);
    const auto checkpoint = Open(PackedGolden(name));
    ASSERT_NE(checkpoint, nullptr);
    const TensorInfo* tensor = checkpoint->Find(kDown);
    const std::vector<float> values = ReadAll(*checkpoint, *tensor);
    const auto stored = ReadBlocks(*checkpoint, *tensor);
    ASSERT_TRUE(stored.ok()) << stored.status();
    std::vector<float> got(values.size());
    DequantizeBlocks(type, stored->data(), got.size() / BlockSizeOf(type).elements, got.data());
    float worst = 0;
    for (size_t i = 0; i < got.size(); ++i) worst = std::max(worst, std::fabs(got[i] - values[i]));
    // Half precision has 11 bits: the product of a scale, 0.05 at most, and a zero point, or, of
    // compressed-int8, a scale that was f32, times 128.
    const bool exact = type != StorageType::kQ4_1 && name != "compressed-int8";
    EXPECT_LE(worst, exact ? 0 : 1.0f / 2048);
    EXPECT_EQ(worst > 0, !exact) << "the minimum is rounded, or the scale";
  }
}

// The error of opening, or of reading everything.
std::string ErrorOf(const std::string& path) {
  const auto checkpoint = Checkpoint::Open(path);
  if (!checkpoint.ok()) return checkpoint.status().ToString();
  for (const TensorInfo* tensor : (*checkpoint)->Tensors()) {
    if (tensor->shape.size() != 2) continue;
    ReadAll(**checkpoint, *tensor);
    if (tensor->packed == nullptr) continue;
    if (const auto blocks = ReadBlocks(**checkpoint, *tensor); !blocks.ok())
      return blocks.status().ToString();
  }
  return "OK";
}

// `part` under another name, as if `part` were missing.
std::string ErrorWithout(const std::string& golden, const std::string& part) {
  return ErrorOf(ChangedGolden(golden, [&](Safetensors* file) {
    file->header["other"] = file->header[kKeyParts + part];
    file->header.erase(kKeyParts + part);
  }));
}

std::string ErrorWith(const std::string& golden, const std::string& part, const char* field,
                      const json& value) {
  return ErrorOf(
      ChangedGolden(golden, [&](Safetensors* file) { file->header[kKeyParts + part][field] = value; }));
}

TEST(PackedTensors, MissingPartsAreNamed) {
  for (const auto& [golden, part] : {std::pair<const char*, const char*>{"gptq4", "scales"},
                                     {"gptq4", "qzeros"},
                                     {"awq4", "scales"},
                                     {"awq4", "qzeros"},
                                     {"compressed4", "weight_scale"},
                                     {"compressed-int8", "weight_scale"},
                                     {"fp8", "weight_scale"}}) {
    EXPECT_THAT(ErrorWithout(golden, part),
                HasSubstr(absl::StrCat("INVALID_ARGUMENT: tensor ", kKeyParts, part, " is missing")))
        << golden;
  }
  EXPECT_EQ(ErrorWithout("gptq4", "g_idx"), "OK") << "inputs are in order without it";
  EXPECT_THAT(ErrorWithout("gptq4", "qweight"), HasSubstr(absl::StrCat("tensor ", kKey, " is missing")));
}

TEST(PackedTensors, WrongShapesAndTypesAreNamed) {
  const struct {
    const char *golden, *part, *field;
    json value;
  } cases[] = {
      {"gptq4", "qweight", "shape", {32, 8}},
      {"gptq4", "qweight", "shape", {256}},
      {"gptq4", "qweight", "dtype", "U32"},
      {"gptq4", "scales", "shape", {32, 2}},
      {"gptq4", "scales", "dtype", "I16"},
      {"gptq4", "qzeros", "shape", {4, 2}},
      {"gptq4", "g_idx", "shape", {8, 8}},
      {"awq4", "qweight", "shape", {4, 64}},
      {"awq4", "qzeros", "shape", {8}},
      {"compressed4", "weight_packed", "shape", {8, 32}},
      {"compressed4", "weight_scale", "shape", {2, 32}},
      {"compressed4-zeros", "weight_zero_point", "shape", {2, 4}},
      {"compressed-int8", "weight", "shape", {64, 32}},
      {"compressed-int8", "weight", "dtype", "U8"},
      {"compressed-fp8", "weight_scale", "shape", {2, 16}},
      {"fp8-blocks", "weight_scale_inv", "shape", {2, 1, 1}},
  };
  for (const auto& one : cases) {
    const std::string error = ErrorWith(one.golden, one.part, one.field, one.value);
    EXPECT_THAT(error,
                HasSubstr(absl::StrCat("INVALID_ARGUMENT: model.safetensors: tensor ", kKeyParts, one.part,
                                       " has ", one.field == std::string("shape") ? "shape" : "type")))
        << one.golden << one.value;
  }
}

TEST(PackedTensors, GroupsThatAreNoneAreRefused) {
  for (const int32_t group : {-1, 2, 1 << 30}) {
    const std::string error = ErrorOf(ChangedGolden("gptq4-order", [group](Safetensors* file) {
      std::memcpy(file->At(kKeyParts + "g_idx", 12), &group, sizeof(group));
    }));
    EXPECT_THAT(error,
                HasSubstr(absl::StrCat("tensor ", kKeyParts, "g_idx puts input 3 into group ", group)));
  }
}

TEST(PackedTensors, WhatHasNoPlaceInABlockIsRefused) {
  EXPECT_THAT(
      ErrorOf(ChangedGolden("gptq4", [](Safetensors* file) { *file->At(kKeyParts + "qzeros") ^= 1; })),
      HasSubstr(absl::StrCat("tensor ", kKey, ": row 0: a zero point is 7, and all should be 8")));
  EXPECT_THAT(
      ErrorOf(ChangedGolden(
          "gptq4", [](Safetensors* file) { std::memcpy(file->At(kKeyParts + "scales", 2), "\x00\x7c", 2); })),
      HasSubstr(absl::StrCat("tensor ", kKey, ": row 1: a scale of inf is beyond half precision")));
}

TEST(PackedTensors, OfFp8NothingIsNaN) {
  EXPECT_THAT(
      ErrorOf(ChangedGolden("fp8", [](Safetensors* file) { *file->At(kKeyParts + "weight", 96) = '\xff'; })),
      HasSubstr(absl::StrCat("tensor ", kKey, ": row 1: a weight is NaN")));
  EXPECT_THAT(ErrorOf(ChangedGolden("fp8-blocks",
                                    [](Safetensors* file) {
                                      std::memcpy(file->At(kKeyParts + "weight_scale_inv"), "\0\0\xc0\x7f",
                                                  4);
                                    })),
              HasSubstr(absl::StrCat("tensor ", kKey, ": row 0: a scale is nan")));
}

// Several scales in a row that shares scales with no other row have no place beside the numbers.
TEST(PackedTensors, Fp8InGroupsOfARowIsOnlyExpanded) {
  const auto checkpoint = Open(ChangedGolden("compressed-fp8", [](Safetensors* file) {
    json& scale = file->header[kKeyParts + "weight_scale"];
    file->header["other"] = scale;
    const std::vector<float> scales(64, 0.25f);
    const int64_t begin = static_cast<int64_t>(file->data.size()), bytes = 64 * sizeof(float);
    file->data.append(reinterpret_cast<const char*>(scales.data()), bytes);
    scale["shape"] = {32, 2};
    scale["data_offsets"] = {begin, begin + bytes};
  }));
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->Find(kKey)->type, StorageType::kF32);
  EXPECT_EQ(checkpoint->Find(kDown)->type, StorageType::kF8E4M3);
  EXPECT_FALSE(checkpoint->Find(kDown)->scaled_by_blocks);
  EXPECT_TRUE(Open(PackedGolden("fp8-blocks"))->Find(kDown)->scaled_by_blocks);
}

TEST(PackedTensors, ConfigurationsThatDoNotFitTheTensors) {
  const auto error = [](const char* golden, const json& quantization) {
    return ErrorOf(ChangedGolden(
        golden, [](Safetensors*) {}, quantization));
  };
  EXPECT_THAT(error("gptq4", {{"bits", 8}}), HasSubstr("qweight has shape [8, 64]"));
  EXPECT_THAT(error("gptq4", {{"group_size", 64}}), HasSubstr("qzeros has shape [2, 8]"));
  EXPECT_THAT(error("gptq4", {{"group_size", 0}}), HasSubstr("quantization_config.group_size: 0"));
  EXPECT_EQ(error("gptq4", {{"sym", false}}), "OK") << "then the zero points count, which are all 8";
}

TEST(PackedTensors, GroupsThatNoBlocksFillAreExact) {
  const auto checkpoint =
      Open(ChangedGolden("fp8", [](Safetensors* file) { file->header[kKeyParts + "weight"]["dtype"] = "I8"; },
                         {{"quant_method", "compressed-tensors"}, {"format", "naive-quantized"}}));
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->Find(kKey)->type, StorageType::kQ8_0) << "one scale for all";
  EXPECT_EQ(checkpoint->Find(kDown)->type, StorageType::kF8E4M3) << "as it was";
}

TEST(PackedTensors, TheFingerprintCountsThem) {
  const auto of = [](const std::string& path) {
    const auto fingerprint = CheckpointFingerprint(path);
    EXPECT_TRUE(fingerprint.ok()) << fingerprint.status();
    return fingerprint.value_or("");
  };
  const std::string before = of(ChangedGolden("gptq4", [](Safetensors*) {}));
  EXPECT_EQ(of(ChangedGolden("gptq4", [](Safetensors*) {})), before);
  EXPECT_NE(of(ChangedGolden("gptq4", [](Safetensors* file) { *file->At(kKeyParts + "qweight") ^= 1; })),
            before);
}

// The read of any file ends.
TEST(PackedTensors, DamageNeverCrashes) {
  std::mt19937 random(1);
  for (const auto& [name, type] : PackedGoldens()) {
    const std::string folder = ChangedGolden(name, [](Safetensors*) {});
    const std::string good = ReadFile(folder + "/model.safetensors");
    const std::string config = ReadFile(folder + "/config.json");
    for (int i = 0; i < 20; ++i) {
      std::string bytes = good, text = config;
      // The header has less than half of the file, and is what decides.
      const size_t end = i % 2 == 0 ? 4000 : bytes.size();
      for (int changes = 0; changes < 3; ++changes)
        bytes[8 + random() % (end - 8)] = static_cast<char>(random());
      if (i % 3 == 0)
        text[text.size() / 2 + random() % (text.size() / 2)] = static_cast<char>('0' + random() % 10);
      if (i % 10 == 9) bytes.resize(random() % bytes.size());
      WriteFile(folder + "/model.safetensors", bytes);
      WriteFile(folder + "/config.json", text);
      ErrorOf(folder);
    }
  }
}

}  // namespace
}  // namespace somnus
