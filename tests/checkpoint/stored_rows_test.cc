// Rectangles of tensors as stored: whole blocks of a rectangle equal the blocks that ReadRows converts.

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "checkpoint/dequantize.h"
#include "checkpoint/storage_type.h"
#include "tests/model/stored_tensors.h"

namespace somnus {
namespace {

constexpr int64_t kRows = 16, kCols = 1024;

TEST(StoredRows, AreTheBlocksThatReadRowsConverts) {
  const auto tensors = StoredTensors::Make(kRows, kCols);
  ASSERT_NE(tensors, nullptr);
  for (const TensorInfo* tensor : tensors->Tensors()) {
    const BlockSize block = BlockSizeOf(tensor->type);
    for (const auto& [col_begin, col_end] : {std::pair<int64_t, int64_t>{0, kCols}, {256, 768}, {512, 512}}) {
      SCOPED_TRACE(testing::Message() << tensor->name << ", columns " << col_begin << " to " << col_end);
      const int64_t row_begin = 3, rows = 10, count = rows * (col_end - col_begin);
      std::vector<float> expected(count), got(count);
      std::vector<uint8_t> stored(count / block.elements * block.bytes);
      ASSERT_TRUE(
          tensors->ReadRows(*tensor, row_begin, row_begin + rows, col_begin, col_end, expected.data()).ok());
      ASSERT_TRUE(
          tensors->ReadStoredRows(*tensor, row_begin, row_begin + rows, col_begin, col_end, stored.data())
              .ok());
      DequantizeBlocks(tensor->type, stored.data(), count / block.elements, got.data());
      EXPECT_EQ(count == 0 ? 0 : std::memcmp(got.data(), expected.data(), count * sizeof(float)), 0);
    }
  }
}

TEST(StoredRows, BoundsWithinABlockAreRefused) {
  const auto tensors = StoredTensors::Make(kRows, kCols);
  ASSERT_NE(tensors, nullptr);
  std::vector<uint8_t> stored(kCols * 4);
  for (const TensorInfo* tensor : tensors->Tensors()) {
    const int64_t elements = BlockSizeOf(tensor->type).elements;
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 16}, {16, 256}}) {
      const absl::Status status = tensors->ReadStoredRows(*tensor, 0, 1, begin, end, stored.data());
      EXPECT_EQ(status.ok(), elements == 1) << tensor->name;
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find(tensor->name), std::string::npos) << status;
    }
  }
}

}  // namespace
}  // namespace somnus
