#include "tools/bench/gpu/sparse_checkpoint.h"

#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "tests/checkpoint/writers.h"

namespace somnus {
namespace {

TEST(SparseCheckpoint, HasEveryTensorFullOfZeros) {
  for (const char* model : {"tests/data/tiny/llama-uneven", "tests/data/tiny/opt", "tests/data/tiny/qwen3"}) {
    const std::string directory = MakeTempDir();
    ASSERT_EQ(WriteSparseCheckpoint(model, directory).ToString(), "OK");
    const auto checkpoint = Checkpoint::Open(directory), original = Checkpoint::Open(model);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    ASSERT_TRUE(original.ok()) << original.status();
    for (const TensorInfo* tensor : (*checkpoint)->Tensors()) {
      ASSERT_NE((*original)->Find(tensor->name), nullptr) << tensor->name;
      EXPECT_EQ((*original)->Find(tensor->name)->shape, tensor->shape);
      const int64_t rows = tensor->shape[0], cols = tensor->shape.size() > 1 ? tensor->shape[1] : 1;
      std::vector<float> values(rows * cols, 1.0f);
      ASSERT_TRUE((*checkpoint)->ReadRows(*tensor, 0, rows, 0, cols, values.data()).ok());
      EXPECT_EQ(values, std::vector<float>(rows * cols, 0.0f));
    }
  }
}

TEST(SparseCheckpoint, SaysWhatCannotBeWritten) {
  EXPECT_FALSE(WriteSparseCheckpoint("tests/data/tiny/none", MakeTempDir()).ok());
  EXPECT_EQ(WriteSparseCheckpoint("tests/data/tiny/opt", "/nowhere").code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace somnus
