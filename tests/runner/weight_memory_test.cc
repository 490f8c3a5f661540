// The memory that the weights of a model really take, as the kernel counts memory, when computed as a GGUF
// file stores the weights: hardly more than the file.

#include <filesystem>
#include <fstream>
#include <string>

#include "checkpoint/storage_type.h"
#include "gtest/gtest.h"
#include "tests/runner/quantized_gguf.h"
#include "tests/runner/rank_group.h"

namespace somnus {
namespace {

// Bytes of anonymous pages of this process that are resident: not the file's own, which is mapped.
int64_t AnonymousBytes() {
  std::ifstream smaps("/proc/self/smaps_rollup");
  for (std::string name; smaps >> name;) {
    int64_t kib = 0;
    if (name == "Anonymous:" && smaps >> kib) return kib * 1024;
  }
  return -1;
}

struct Shape {
  StorageType type;
  int intermediate;
};

class WeightMemory : public testing::TestWithParam<Shape> {};

// Files of about 50 MB: the memory is in pages of 2 MiB, of which half a page is left over on average.
TEST_P(WeightMemory, IsHardlyMoreThanTheFile) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory counts as the process's";
#endif
  const std::string path = WriteQuantizedGguf({.layers = GetParam().type,
                                               .embedding = GetParam().type,
                                               .hidden = 2048,
                                               .intermediate = GetParam().intermediate,
                                               .head_dim = 256,
                                               .vocab = 2048});
  const auto file_bytes = static_cast<double>(std::filesystem::file_size(path));
  ASSERT_GT(file_bytes, 45e6);
  ModelRunnerOptions options;
  options.dtype = DataType::kBF16;
  options.dequantize = false;
  options.max_num_seqs = 1;
  options.max_num_batched_tokens = 16;
  options.max_model_len = 32;

  const int64_t before = AnonymousBytes();
  ASSERT_GT(before, 0);
  auto group = RankGroup::Load(path, 1, options, 4);
  ASSERT_TRUE(group.ok()) << group.status();
  const int64_t loaded = AnonymousBytes();
  SleepableAllocator& allocator = (*group)->allocator(0);
  BytesByTag tags = allocator.ResidentBytes();
  const auto slept = allocator.Sleep({{"weights", RestoreMode::kDiscard}});
  ASSERT_TRUE(slept.ok()) << slept.status();
  const auto weights = static_cast<double>(loaded - AnonymousBytes());  // memory that the sleep gave back
  RecordProperty("weights_of_file", std::to_string(weights / file_bytes));

  EXPECT_LE(weights, 1.05 * file_bytes);
  EXPECT_GE(weights, 0.98 * file_bytes) << "a part of the weights is elsewhere";
  EXPECT_NEAR(weights, static_cast<double>(tags["weights"]), 1e6);
  // There is no second copy either: all that the load took, but for the other tags' memory.
  EXPECT_LE(loaded - before - tags["kv_cache"] - tags["workspace"], 1.2 * file_bytes);
}

INSTANTIATE_TEST_SUITE_P(Types, WeightMemory,
                         testing::Values(Shape{StorageType::kQ4_0, 6144}, Shape{StorageType::kQ4_1, 5632},
                                         Shape{StorageType::kQ8_0, 3072}, Shape{StorageType::kQ4_K, 6144}),
                         [](const testing::TestParamInfo<Shape>& info) {
                           return std::string(StorageTypeName(info.param.type));
                         });

}  // namespace
}  // namespace somnus
