// Which bytes of the files a rank reads.

#include "worker/model/weight_ranges.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/model/weight_chunks.h"

namespace somnus {
namespace {

std::vector<FileRange> RangesOf(const Checkpoint& checkpoint, int rank, int world_size) {
  auto device = Device::CreateCpu({.num_threads = 1});
  EXPECT_TRUE(device.ok()) << device.status();
  const auto plan = PlanOf(checkpoint, {rank, world_size, DataType::kF32}, **device);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return WeightRanges(*plan);
}

bool Covers(const std::vector<FileRange>& ranges, const MappedFile* file, uint64_t begin, uint64_t end) {
  for (const FileRange& range : ranges) {
    if (range.file == file && range.begin <= begin && end <= range.end) return true;
  }
  return false;
}

TEST(WeightRanges, OneRankReadsEveryTensorAndNothingTwice) {
  for (const char* model : {"llama-uneven", "qwen2", "qwen3", "opt"}) {
    SCOPED_TRACE(model);
    const auto checkpoint = Checkpoint::Open(absl::StrCat("tests/data/tiny/", model));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const std::vector<FileRange> ranges = RangesOf(**checkpoint, 0, 1);
    for (size_t i = 0; i < ranges.size(); ++i) {
      EXPECT_LT(ranges[i].begin, ranges[i].end);
      EXPECT_LE(ranges[i].end, ranges[i].file->size());
      if (i == 0 || ranges[i].file != ranges[i - 1].file) continue;
      EXPECT_GT(ranges[i].begin, ranges[i - 1].end);
    }
    int num_tensors = 0;
    for (const TensorInfo* tensor : (*checkpoint)->Tensors()) {
      if (tensor->source == nullptr) continue;
      const uint64_t begin = tensor->data - tensor->source->data();
      num_tensors += Covers(ranges, tensor->source, begin, begin + tensor->bytes);
    }
    EXPECT_GT(num_tensors, 0);
    // A head that is tied to the embedding may be stored, and is not read.
    EXPECT_GE(num_tensors, static_cast<int>((*checkpoint)->Tensors().size()) - 1);
  }
}

TEST(WeightRanges, SeveralRanksTogetherReadWhatOneWould) {
  const auto checkpoint = Checkpoint::Open("tests/data/tiny/qwen3");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const std::vector<FileRange> all = RangesOf(**checkpoint, 0, 1);
  for (int rank = 0; rank < 2; ++rank) {
    for (const FileRange& range : RangesOf(**checkpoint, rank, 2))
      EXPECT_TRUE(Covers(all, range.file, range.begin, range.end));
  }
}

}  // namespace
}  // namespace somnus
