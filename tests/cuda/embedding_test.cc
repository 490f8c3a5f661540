// Embeddings and gathered rows: no arithmetic but one addition, so equal to the CPU's to the bit.

#include "tests/cuda/rows_test_util.h"

namespace somnus {
namespace {

using namespace cuda_test;
using kernel_test::Matrix;

constexpr int64_t kWidths[] = {1, 3, 4, 64, 100, 576, 2049, 4104, 16384};

class EmbeddingTest : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(Types, EmbeddingTest, testing::ValuesIn(kActTypes), TypeName);

void CompareEmbedding(DataType type, int64_t k, Layout layout, int64_t tokens) {
  const std::unique_ptr<Device> device = MakeCudaDevice(), cpu = Oracle();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  constexpr int64_t kVocabBegin = 5, kVocab = 7, kVocabEnd = kVocabBegin + kVocab;
  const std::vector<int32_t> ids = {5, 11, 8, 12, 4, 0, -1, 7, 1 << 30, 5};
  DeviceArray<int32_t> device_ids(ids);
  DeviceMatrix table(type, kVocab, k, {0, layout.offset});
  Matrix dense(DataType::kF32, kVocab, k);
  table.Randomize(1, 1, &dense);
  kernel_test::Packed packed(*cpu, type, kVocab, k, std::vector<float>(dense.row(0), dense.row(kVocab)));
  DeviceMatrix out(DataType::kF32, tokens, k, layout);
  Matrix want(DataType::kF32, tokens, k);
  Embedding(*device, device_ids.data(), {table.view().data, type, kVocab, k}, kVocabBegin, kVocabEnd,
            out.view());
  ASSERT_TRUE(device->Synchronize().ok());
  Embedding(*cpu, ids.data(), packed.weight, kVocabBegin, kVocabEnd, want.view());
  for (int64_t t = 0; t < tokens; ++t)
    ASSERT_EQ(out.Bytes(t), want.Bytes(t)) << "width " << k << ", row " << t;
}

void CompareGather(DataType type, int64_t n, Layout layout, int64_t count) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  const std::vector<int32_t> rows = {4, 0, 4, 2, 5};
  DeviceArray<int32_t> device_rows(rows);
  DeviceMatrix x(type, 6, n, layout), out(type, count, n, {layout.pad * 2, layout.offset});
  x.Randomize(2);
  GatherRows(*device, x.view(), device_rows.data(), out.view());
  ASSERT_TRUE(device->Synchronize().ok());
  for (int64_t r = 0; r < count; ++r) ASSERT_EQ(out.Bytes(r), x.Bytes(rows[r])) << "width " << n;
}

void ComparePools(DataType type, int64_t n, Layout layout, int64_t count) {
  const std::unique_ptr<Device> device = MakeCudaDevice(), cpu = Oracle();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  const std::vector<PooledRows> pools = {
      {3, 1, 4, false, 1}, {0, 40, 0, false, 40}, {5, 20, 2, true, 31}, {39, 1, 1, true, 1}};
  DeviceArray<PooledRows> device_pools(pools);
  DeviceMatrix x(type, 40, n, layout), out(DataType::kF32, 5, n, {layout.pad, layout.offset});
  Matrix host_x(DataType::kF32, 40, n), want(DataType::kF32, 5, n);
  x.Randomize(5, 1, &host_x);
  out.Randomize(6, 1, &want);
  PoolRows(*device, x.view(), device_pools.data(), count, out.view());
  ASSERT_TRUE(device->Synchronize().ok());
  PoolRows(*cpu, host_x.view(), pools.data(), count, want.view());
  for (int64_t r = 0; r < 5; ++r) ASSERT_EQ(out.Bytes(r), want.Bytes(r)) << "width " << n << ", row " << r;
}

void ComparePositions(int64_t n, Layout layout, int64_t tokens) {
  const std::unique_ptr<Device> device = MakeCudaDevice(), cpu = Oracle();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  const std::vector<int32_t> positions = {0, 9, 3, 3, 1};
  DeviceArray<int32_t> device_positions(positions);
  DeviceMatrix table(DataType::kF32, 12, n, layout), out(DataType::kF32, tokens, n, layout);
  Matrix host_table(DataType::kF32, 12, n), want(DataType::kF32, tokens, n);
  table.Randomize(3, 1, &host_table);
  out.Randomize(4, 1, &want);
  AddPositionEmbedding(*device, device_positions.data(), table.view(), 2, out.view());
  ASSERT_TRUE(device->Synchronize().ok());
  AddPositionEmbedding(*cpu, positions.data(), host_table.view(), 2, want.view());
  for (int64_t t = 0; t < tokens; ++t)
    ASSERT_EQ(out.Bytes(t), want.Bytes(t)) << "width " << n << ", row " << t;
}

TEST_P(EmbeddingTest, SmallRows) {
  CompareEmbedding(GetParam(), 64, {}, 3);
  CompareGather(GetParam(), 64, {}, 3);
  ComparePools(GetParam(), 64, {}, 2);
}

TEST_P(EmbeddingTest, EqualsTheCpu) {
  for (const int64_t k : kWidths) {
    for (const Layout layout : kLayouts) {
      for (const int64_t tokens : {0, 1, 10}) CompareEmbedding(GetParam(), k, layout, tokens);
    }
  }
}

TEST_P(EmbeddingTest, AnEmptyVocabularyGivesZeros) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  DeviceArray<int32_t> ids({0, 3, -2});
  for (const int64_t k : {3, 64}) {
    DeviceMatrix out(DataType::kF32, 3, k);
    Embedding(*device, ids.data(), {nullptr, GetParam(), 0, k}, 0, 0, out.view());
    ASSERT_TRUE(device->Synchronize().ok());
    for (int64_t t = 0; t < 3; ++t) EXPECT_EQ(out.Bytes(t), std::string(k * 4, '\0'));
  }
}

TEST_P(EmbeddingTest, GatheredRowsAreTheirSource) {
  for (const int64_t n : kWidths) {
    for (const Layout layout : kLayouts) {
      for (const int64_t count : {0, 1, 5}) CompareGather(GetParam(), n, layout, count);
    }
  }
}

TEST_P(EmbeddingTest, PoolsEqualTheCpus) {
  ComparePools(GetParam(), 64, {}, 2);
  for (const int64_t n : kWidths) {
    for (const Layout layout : kLayouts) {
      for (const int64_t count : {0, 1, 4}) ComparePools(GetParam(), n, layout, count);
    }
  }
}

TEST(PositionEmbeddingTest, SmallRows) { ComparePositions(64, {}, 3); }

TEST(PositionEmbeddingTest, EqualsTheCpu) {
  for (const int64_t n : kWidths) {
    for (const Layout layout : kLayouts) {
      for (const int64_t tokens : {0, 1, 5}) ComparePositions(n, layout, tokens);
    }
  }
}

}  // namespace
}  // namespace somnus
