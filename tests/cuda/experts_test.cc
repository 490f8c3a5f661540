// Mixtures of experts on CUDA: the router and the order of rows, products against Linear with batch
// invariance, bit for bit, and the weighted sum.

#include <cmath>
#include <set>

#include "tests/cuda/linear_test_util.h"

namespace somnus::cuda_test {
namespace {

constexpr int64_t kExperts = 7;

class CudaExpertsTest : public testing::TestWithParam<DataType> {
 protected:
  void SetUp() override { SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice()); }
};
INSTANTIATE_TEST_SUITE_P(Types, CudaExpertsTest, testing::ValuesIn(kActTypes), TypeName);

// An ExpertRouting in the device's memory.
struct Routing {
  Routing(int64_t tokens, int64_t per_token, int64_t first, int64_t count)
      : ids(tokens * per_token * 4),
        weights(tokens * per_token * 4),
        begin((count + 1) * 4),
        token_of(tokens * per_token * 4),
        row_of(tokens * per_token * 4),
        tiles(2 * ExpertTiles(tokens * per_token, count) * 4) {
    routing = {.num_tokens = tokens,
               .per_token = per_token,
               .first_expert = first,
               .num_experts = count,
               .ids = ids.device<int32_t>(),
               .weights = weights.device<float>(),
               .begin = begin.device<int32_t>(),
               .token_of = token_of.device<int32_t>(),
               .row_of = row_of.device<int32_t>(),
               .tiles = tiles.device<int32_t>()};
  }
  DeviceBuffer ids, weights, begin, token_of, row_of, tiles;
  ExpertRouting routing;
};

// Chooses experts by random logits; expert 2 gets no token.
void RouteRandomly(Device& device, const RouterRule& rule, Routing& r) {
  DeviceMatrix logits(DataType::kF32, r.routing.num_tokens, kExperts, {3, 0});
  logits.Randomize(static_cast<uint32_t>(r.routing.num_tokens));
  for (int64_t t = 0; t < r.routing.num_tokens; ++t) logits.Set(t, 2, -100);
  RouteExperts(device, logits.view(), nullptr, rule, r.routing);
  ASSERT_TRUE(device.Synchronize().ok());
}

// Every pair has one row among the expert's rows, in the order of tokens, and a tile has every row.
void ExpectSorted(const Routing& r) {
  const auto ids = r.ids.Values<int32_t>(), begin = r.begin.Values<int32_t>();
  const auto row_of = r.row_of.Values<int32_t>(), token_of = r.token_of.Values<int32_t>();
  const auto tiles = r.tiles.Values<int32_t>();
  int32_t rows = 0;
  std::set<int32_t> expected_tiles, found;
  for (int64_t e = 0; e < r.routing.num_experts; ++e) {
    ASSERT_EQ(begin[e], rows);
    for (size_t p = 0; p < ids.size(); ++p) {
      if (ids[p] != e + r.routing.first_expert) continue;
      if ((rows - begin[e]) % kExpertTileRows == 0) expected_tiles.insert(rows);
      ASSERT_EQ(row_of[p], rows);
      ASSERT_EQ(token_of[rows++], static_cast<int32_t>(p / r.routing.per_token));
    }
  }
  ASSERT_EQ(begin.back(), rows);
  for (size_t i = 0; i < tiles.size(); i += 2) {
    if (tiles[i] < 0) continue;
    EXPECT_TRUE(found.insert(tiles[i + 1]).second);
    EXPECT_GE(tiles[i + 1], begin[tiles[i]]);
    EXPECT_LT(tiles[i + 1], begin[tiles[i] + 1]);
  }
  EXPECT_EQ(found, expected_tiles);
  for (size_t p = 0; p < ids.size(); ++p) {
    const int64_t expert = ids[p] - r.routing.first_expert;
    if (expert < 0 || expert >= r.routing.num_experts) {
      ASSERT_EQ(row_of[p], -1);
    }
  }
}

// As the CPU, whose router tests/kernels/experts_test.cc checks.
TEST(CudaRouterTest, SmallChoiceIsTheCpus) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  const RouterRule rules[] = {
      {.per_token = 3, .renormalize = false},
      {.per_token = 4, .sigmoid = true, .scale = 1.5f, .num_groups = 5, .top_groups = 2},
  };
  constexpr int64_t kTokens = 6, kAll = 40;
  for (const RouterRule& rule : rules) {
    CudaBench bench({});
    const std::unique_ptr<Device> cpu = *Device::CreateCpu({.num_threads = 1});
    DeviceMatrix logits(DataType::kF32, kTokens, kAll);
    kernel_test::Matrix on_cpu(DataType::kF32, kTokens, kAll);
    on_cpu.Randomize(4);
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t e = 0; e < kAll; ++e) logits.Set(t, e, on_cpu.Get(t, e));
    }
    const std::vector<float> correction = kernel_test::RandomFloats(kAll, 5, 0.3f);
    DeviceArray<float> added(correction);
    Routing r(kTokens, rule.per_token, 10, 20);
    RouteExperts(*bench.device, logits.view(), added.data(), rule, r.routing);
    ASSERT_TRUE(bench.device->Synchronize().ok());
    std::vector<int32_t> ids(r.routing.NumPairs()), begin(21), token_of(ids.size()), row_of(ids.size());
    std::vector<float> weights(ids.size());
    ExpertRouting expected = r.routing;
    expected.ids = ids.data();
    expected.weights = weights.data();
    expected.begin = begin.data();
    expected.token_of = token_of.data();
    expected.row_of = row_of.data();
    RouteExperts(*cpu, on_cpu.view(), correction.data(), rule, expected);
    EXPECT_EQ(r.ids.Values<int32_t>(), ids);
    EXPECT_EQ(r.row_of.Values<int32_t>(), row_of);
    const auto found = r.weights.Values<float>();
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], weights[i], 1e-5f);
    ExpectSorted(r);
  }
}

TEST(CudaRouterTest, ManyPairsAreSortedByExpert) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  for (const int64_t first : {0, 3}) {
    CudaBench bench({});
    Routing r(300, 2, first, kExperts - first);
    RouteRandomly(*bench.device, {.per_token = 2}, r);
    ExpectSorted(r);
  }
}

// Padded rows, which have slot 0, are no tokens; neither are pairs of other ranks' experts.
TEST(CudaRouterTest, TokensOfExpertsAreCounted) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  constexpr int64_t kPerToken = 2, kFirst = 1, kCount = 5, kTokens = 300, kLive = 290;
  CudaBench bench({});
  Routing r(kTokens, kPerToken, kFirst, kCount);
  std::vector<int32_t> slots(kTokens);
  for (int64_t t = 0; t < kLive; ++t) slots[t] = static_cast<int32_t>(16 + t);
  DeviceArray<int32_t> on_device(slots);
  DeviceArray<uint32_t> load(std::vector<uint32_t>(kCount, 77));  // of an earlier step
  r.routing.load = load.data();
  r.routing.slots = on_device.data();
  std::vector<uint32_t> expected(kCount);
  for (const bool adds : {false, true}) {
    r.routing.adds_load = adds;
    RouteRandomly(*bench.device, {.per_token = kPerToken}, r);
    const auto ids = r.ids.Values<int32_t>();
    for (int64_t pair = 0; pair < kLive * kPerToken; ++pair) {
      const int64_t expert = ids[pair] - kFirst;
      if (expert >= 0 && expert < kCount) ++expected[expert];
    }
    EXPECT_EQ(load.Values(), expected);
  }
}

struct Product {
  int64_t tokens, n, k;
};

// Rows of experts have the bits of Linear where both take vectors, and nearly the same bits elsewhere.
void ExpectProduct(DataType act, const Product& p, ExpertInput input) {
  SCOPED_TRACE(testing::Message() << p.tokens << " tokens, n " << p.n << ", k " << p.k);
  constexpr int64_t kPerToken = 2;
  const int64_t pairs = p.tokens * kPerToken;
  CudaBench bench(LinearLimits(pairs, p.n, p.k));
  bench.device->SetBatchInvariant(true);
  Routing r(p.tokens, kPerToken, 0, kExperts);
  RouteRandomly(*bench.device, {.per_token = kPerToken}, r);
  // The rows of all experts, stacked, are one matrix.
  const std::vector<float> values = RandomIntegers(kExperts * p.n * p.k, 2, 4);
  DeviceWeight all(*bench.device, act, kExperts * p.n, p.k, values);
  const int64_t stride = p.n * p.k * SizeOf(act);
  const ExpertWeight w = {{all.weight.data, act, p.n, p.k}, kExperts, stride};
  DeviceArray<float> bias(RandomIntegers(kExperts * p.n, 3, 50));
  const bool rows = input == ExpertInput::kRows;
  DeviceMatrix x(act, rows ? pairs : p.tokens, p.k, {8, 0}), y(act, pairs, p.n);
  x.Randomize(4);
  ExpertsLinear(*bench.device, x.view(), input, r.routing, w, {bias.data(), p.n}, y.view());
  DeviceMatrix alone(act, 1, p.n);
  const auto ids = r.ids.Values<int32_t>(), row_of = r.row_of.Values<int32_t>();
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const int64_t from = rows ? row_of[pair] : pair / kPerToken;
    LinearWeight one = w.Of(ids[pair]);
    Linear(*bench.device, x.view(from, 1), one, bias.data() + ids[pair] * p.n, alone.view());
    ASSERT_TRUE(bench.device->Synchronize().ok());
    const double tolerance = act == DataType::kF32 ? 1e-3 : act == DataType::kF16 ? 0.1 : 1;
    for (int64_t n = 0; n < p.n; ++n)
      ASSERT_NEAR(y.Get(row_of[pair], n), alone.Get(0, n), tolerance) << "pair " << pair << ", column " << n;
    if (act != DataType::kF32 && stride % 16 == 0 && p.k % 8 == 0) {
      ASSERT_EQ(y.Bytes(row_of[pair]), alone.Bytes(0)) << "pair " << pair;
    }
  }
}

TEST_P(CudaExpertsTest, SmallProductsAreLinears) {
  ExpectProduct(GetParam(), {5, 40, 72}, ExpertInput::kTokens);
  ExpectProduct(GetParam(), {3, 9, 5}, ExpertInput::kRows);
}

TEST_P(CudaExpertsTest, ManyRowsAreLinears) {
  ExpectProduct(GetParam(), {200, 34, 136}, ExpertInput::kTokens);
  if (HasFatalFailure()) return;
  ExpectProduct(GetParam(), {90, 48, 64}, ExpertInput::kRows);
}

TEST_P(CudaExpertsTest, SmallSum) {
  constexpr int64_t kTokens = 5, kPerToken = 3, kCols = 130;
  CudaBench bench({});
  Routing r(kTokens, kPerToken, 1, 5);
  RouteRandomly(*bench.device, {.per_token = kPerToken}, r);
  DeviceMatrix x(GetParam(), kTokens * kPerToken, kCols), shared(GetParam(), kTokens, kCols);
  DeviceMatrix mix(DataType::kF32, kTokens, 1), out(GetParam(), kTokens, kCols);
  x.Randomize(1);
  shared.Randomize(2);
  mix.Randomize(3);
  CombineExperts(*bench.device, x.view(), r.routing, shared.view(), mix.view(), out.view());
  ASSERT_TRUE(bench.device->Synchronize().ok());
  const auto weights = r.weights.Values<float>();
  const auto row_of = r.row_of.Values<int32_t>();
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t c = 0; c < kCols; ++c) {
      double sum = shared.Get(t, c) / (1 + std::exp(-mix.Get(t, 0)));
      for (int64_t i = t * kPerToken; i < (t + 1) * kPerToken; ++i) {
        if (row_of[i] >= 0) sum += static_cast<double>(weights[i]) * x.Get(row_of[i], c);
      }
      ASSERT_NEAR(out.Get(t, c), sum, 1e-5 + std::fabs(sum) * kernel_test::Epsilon(GetParam()) * 2);
    }
  }
}

}  // namespace
}  // namespace somnus::cuda_test
