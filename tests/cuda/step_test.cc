// The ops of a step's inputs and results against the CPU's, to the bit.

#include <functional>

#include "tests/cuda/rows_test_util.h"

namespace somnus {
namespace {

using namespace cuda_test;

class StepTest : public testing::Test {
 protected:
  void SetUp() override { SOMNUS_SKIP_WITHOUT_GPU(device_); }

  // Runs an op on both devices over the same array, and expects the same values in the array.
  void Compare(const std::vector<int32_t>& before, const std::function<void(Device&, int32_t*)>& op) {
    DeviceArray<int32_t> got(before);
    std::vector<int32_t> want = before;
    op(*device_, got.data());
    op(*cpu_, want.data());
    ASSERT_TRUE(device_->Synchronize().ok());
    EXPECT_EQ(got.Values(), want);
  }

  const std::unique_ptr<Device> device_ = MakeCudaDevice(), cpu_ = Oracle();
};

constexpr int64_t kSlots = 3, kMaxBlocks = 5;

TEST_F(StepTest, SmallBlockTables) {
  DeviceArray<BlockTableEdit> edits({{0, 4, 70}, {2, 0, 71}, {2, 1, 72}});
  Compare(std::vector<int32_t>(kSlots * kMaxBlocks, 9),
          [&](Device& on, int32_t* tables) { EditBlockTables(on, edits.On(on), 3, tables, kMaxBlocks); });
  std::vector<int32_t> entries(kSlots * kMaxBlocks);
  for (size_t i = 0; i < entries.size(); ++i) entries[i] = static_cast<int32_t>(100 + i);
  DeviceArray<int32_t> tables(entries), slots({2, 0, 1, 2}), lengths({17, 0, 80, 16});
  Compare(std::vector<int32_t>(4 * kMaxBlocks, 9), [&](Device& on, int32_t* out) {
    GatherBlockTables(on, tables.On(on), slots.On(on), lengths.On(on), 4, kMaxBlocks, 16, out);
  });
}

TEST_F(StepTest, SmallSetsOfTokens) {
  DeviceArray<int32_t> values({50, kLogitsNotFinite, 52}), slots({2, -1, 0}), tokens({7, 8, 9});
  Compare({4, -1, -3, 5, -2}, [&](Device& on, int32_t* ids) { ResolveTokens(on, ids, 5, values.On(on)); });
  Compare({1, 2, 3},
          [&](Device& on, int32_t* held) { ScatterTokens(on, slots.On(on), tokens.On(on), 3, held); });
  DeviceArray<ScoredToken> scores({{1, 3}, {2, 4}, {NAN, -1}, {2, 7}, {1, 6}, {9, 8}});  // of 2 ranks, 3 rows
  Compare({0, 0, 0}, [&](Device& on, int32_t* best) { CombineArgMax(on, scores.On(on), 2, 3, best); });
}

TEST_F(StepTest, SmallMatrices) {
  for (const DataType type : kActTypes) {
    DeviceMatrix x(type, 3, 10, {6, 0});
    x.Randomize(1);
    FillZero(*device_, x.view(1, 2));
    ASSERT_TRUE(device_->Synchronize().ok());
    for (int64_t c = 0; c < 10; ++c) EXPECT_NE(x.Get(0, c), 0);
    EXPECT_EQ(x.Bytes(1) + x.Bytes(2), std::string(2 * 10 * SizeOf(type), '\0'));
  }
  DeviceMatrix from(DataType::kF32, 3, 11, {3, 1}), to(DataType::kF32, 3, 11, {5, 0});
  from.Randomize(2);
  CopyMatrix(*device_, from.view(), to.view());
  ASSERT_TRUE(device_->Synchronize().ok());
  for (int64_t r = 0; r < 3; ++r) EXPECT_EQ(to.Bytes(r), from.Bytes(r));
}

}  // namespace
}  // namespace somnus
