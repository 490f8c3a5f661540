// Mixtures of experts: the router against a plain router in double, rows of experts against Linear, bit for
// bit, and the weighted sum.

#include <algorithm>
#include <numeric>

#include "tests/kernels/kernel_test_util.h"

namespace somnus {
namespace {

using namespace kernel_test;

class ExpertsTest : public testing::TestWithParam<CpuIsa> {};
INSTANTIATE_TEST_SUITE_P(Isas, ExpertsTest, testing::ValuesIn(IsasWithOwnKernels()), IsaName);

// The memory of an ExpertRouting of so many tokens, and of experts [first, first + count).
struct Routing {
  Routing(int64_t tokens, int64_t per_token, int64_t first, int64_t count)
      : ids(tokens * per_token, -7),
        begin(count + 1),
        token_of(tokens * per_token),
        row_of(tokens * per_token),
        weights(tokens * per_token) {
    routing = {.num_tokens = tokens,
               .per_token = per_token,
               .first_expert = first,
               .num_experts = count,
               .ids = ids.data(),
               .weights = weights.data(),
               .begin = begin.data(),
               .token_of = token_of.data(),
               .row_of = row_of.data()};
  }
  std::vector<int32_t> ids, begin, token_of, row_of;
  std::vector<float> weights;
  ExpertRouting routing;
};

OpsLimits Limits(int64_t rows, int64_t experts, int64_t n, int64_t k) {
  return {.max_tokens = rows, .max_k = k, .max_n = n, .max_expert_rows = rows, .max_experts = experts};
}

// The choice of a router for one token, in double.
std::vector<std::pair<int, double>> PlainChoice(const std::vector<double>& logits, const float* correction,
                                                const RouterRule& rule) {
  const int n = static_cast<int>(logits.size());
  std::vector<double> scores(n), choice(n);
  double sum = 0;
  for (const double x : logits) sum += std::exp(x);
  for (int e = 0; e < n; ++e) {
    scores[e] = rule.sigmoid ? 1 / (1 + std::exp(-logits[e])) : std::exp(logits[e]) / sum;
    choice[e] = scores[e] + (correction == nullptr ? 0 : correction[e]);
  }
  const int size = n / static_cast<int>(rule.num_groups);
  std::vector<std::pair<double, int>> groups;
  for (int g = 0; g * size < n; ++g) {
    std::vector<double> part(choice.begin() + g * size, choice.begin() + (g + 1) * size);
    std::sort(part.rbegin(), part.rend());
    groups.emplace_back(-(part[0] + (size > 1 ? part[1] : 0)), g);
  }
  std::sort(groups.begin(), groups.end());
  std::vector<int> order;
  for (int64_t i = 0; i < rule.top_groups; ++i) {
    for (int e = 0; e < size; ++e) order.push_back(groups[i].second * size + e);
  }
  std::sort(order.begin(), order.end(), [&](int a, int b) { return choice[a] > choice[b]; });
  order.resize(rule.per_token);
  double chosen = 0;
  for (const int e : order) chosen += scores[e];
  std::vector<std::pair<int, double>> result;
  for (const int e : order)
    result.emplace_back(e, scores[e] / (rule.renormalize ? chosen : 1) * static_cast<double>(rule.scale));
  return result;
}

TEST_P(ExpertsTest, RouterChoosesTheBest) {
  constexpr int64_t kTokens = 41, kExperts = 24;
  const RouterRule rules[] = {
      {.per_token = 1},
      {.per_token = 8, .renormalize = false},
      {.per_token = 5, .sigmoid = true, .scale = 2.5f},
      {.per_token = 6, .sigmoid = true, .num_groups = 6, .top_groups = 2},
      {.per_token = 3, .sigmoid = true, .renormalize = false, .num_groups = 12, .top_groups = 3},
  };
  for (const RouterRule& rule : rules) {
    SCOPED_TRACE(testing::Message() << rule.per_token << " of " << kExperts << ", groups "
                                    << rule.num_groups);
    Bench bench(GetParam(), 3, {});
    Matrix logits(DataType::kF32, kTokens, kExperts, 3);
    logits.Randomize(9, 2);
    const std::vector<float> correction = RandomFloats(kExperts, 10, 0.3f);
    const float* const added = rule.sigmoid ? correction.data() : nullptr;
    Routing r(kTokens, rule.per_token, 0, kExperts);
    RouteExperts(*bench.device, logits.view(), added, rule, r.routing);
    for (int64_t t = 0; t < kTokens; ++t) {
      const auto expected =
          PlainChoice(std::vector<double>(logits.row(t), logits.row(t) + kExperts), added, rule);
      for (int64_t i = 0; i < rule.per_token; ++i) {
        ASSERT_EQ(r.ids[t * rule.per_token + i], expected[i].first) << "token " << t << ", place " << i;
        ASSERT_NEAR(r.weights[t * rule.per_token + i], expected[i].second, 1e-6);
      }
    }
  }
}

// Among equals the smaller number; rows are in the order of experts, then of tokens; other ranks' have none.
TEST_P(ExpertsTest, PairsAreSortedByExpert) {
  Bench bench(GetParam(), 2, {});
  Matrix logits(DataType::kF32, 3, 5);
  logits.Set(1, 4, 1);
  logits.Set(2, 2, 1);
  Routing r(3, 2, 1, 3);
  RouteExperts(*bench.device, logits.view(), nullptr, {.per_token = 2}, r.routing);
  EXPECT_EQ(r.ids, (std::vector<int32_t>{0, 1, 4, 0, 2, 0}));
  EXPECT_EQ(r.begin, (std::vector<int32_t>{0, 1, 2, 2}));
  EXPECT_EQ(r.row_of, (std::vector<int32_t>{-1, 0, -1, -1, 1, -1}));
  EXPECT_EQ(r.token_of[0], 0);
  EXPECT_EQ(r.token_of[1], 2);
}

// Padded rows, whose slot is 0, are no tokens; neither are pairs of other ranks' experts.
TEST_P(ExpertsTest, TokensOfExpertsAreCounted) {
  constexpr int64_t kExperts = 6, kPerToken = 2, kFirst = 1, kCount = 4, kTokens = 50;
  Bench bench(GetParam(), 3, {});
  Matrix logits(DataType::kF32, kTokens, kExperts);
  logits.Randomize(3);
  Routing r(kTokens, kPerToken, kFirst, kCount);
  std::vector<uint32_t> load(kCount, 77);  // of an earlier step
  std::vector<int32_t> slots(kTokens);
  for (int64_t t = 0; t < kTokens; ++t) slots[t] = t < 40 ? static_cast<int32_t>(16 + t) : 0;
  r.routing.load = load.data();
  r.routing.slots = slots.data();
  RouteExperts(*bench.device, logits.view(), nullptr, {.per_token = kPerToken}, r.routing);
  std::vector<uint32_t> expected(kCount);
  for (int64_t pair = 0; pair < 40 * kPerToken; ++pair) {
    const int64_t expert = r.ids[pair] - kFirst;
    if (expert >= 0 && expert < kCount) ++expected[expert];
  }
  EXPECT_EQ(load, expected);
  r.routing.adds_load = true;
  RouteExperts(*bench.device, logits.view(), nullptr, {.per_token = kPerToken}, r.routing);
  for (uint32_t& count : expected) count *= 2;
  EXPECT_EQ(load, expected);
}

// Random blocks of a quantized type, whose scales are finite.
std::vector<uint8_t> RandomBlocks(DataType type, int64_t n, int64_t k, uint32_t seed) {
  const int64_t bytes = QuantBlockBytes(type), row_bytes = MatrixRowBytes(type, k);
  std::vector<uint8_t> rows(n * row_bytes);
  std::mt19937 random(seed);
  for (uint8_t& byte : rows) byte = static_cast<uint8_t>(random());
  for (int64_t at = 0; at < static_cast<int64_t>(rows.size()); at += bytes) {
    uint8_t* const block = &rows[at];
    if (type == DataType::kF8E4M3) {  // a row has one scale, and no number is NaN
      const float scale = 0.01f * static_cast<float>(1 + at / row_bytes);
      std::memcpy(block, &scale, sizeof(scale));
      for (int64_t i = sizeof(scale); i < bytes; ++i) block[i] ^= (block[i] & 0x7f) == 0x7f ? 1 : 0;
    } else if (type == DataType::kMXFP4) {
      block[0] = static_cast<uint8_t>(120 + block[0] % 8);
    } else {  // f16 below 2, and of Q4_K the minimum, too
      block[type == DataType::kQ6_K ? 209 : 1] &= 0xbf;
      if (type == DataType::kQ4_K) block[3] &= 0xbf;
    }
  }
  return rows;
}

// Weights of `count` experts, at one distance, with gaps.
struct PackedExperts {
  PackedExperts(const Device& device, DataType type, int64_t count, int64_t n, int64_t k)
      : stride((PackedWeightBytes(device, type, n, k) + 63) / 64 * 64 + 128), buffer(count * stride) {
    weight = {{buffer.as<void>(), type, n, k}, count, stride};
    for (int64_t e = 0; e < count; ++e) {
      const auto seed = static_cast<uint32_t>(20 + e);
      if (IsQuantized(type)) {
        PackQuantizedRows(device, weight.Of(e), 0, n, RandomBlocks(type, n, k, seed).data());
      } else {
        PackInPieces(device, weight.Of(e), RandomFloats(n * k, seed));
      }
    }
  }
  int64_t stride;
  Buffer buffer;
  ExpertWeight weight;
};

// Chooses experts by random logits; expert 2 gets no token.
void RouteRandomly(Device& device, int64_t experts, Routing& r) {
  Matrix logits(DataType::kF32, r.routing.num_tokens, experts);
  logits.Randomize(static_cast<uint32_t>(r.routing.num_tokens));
  for (int64_t t = 0; t < r.routing.num_tokens; ++t) logits.Set(t, 2, -100);
  RouteExperts(device, logits.view(), nullptr, {.per_token = r.routing.per_token}, r.routing);
}

// Each row of the routing, computed by Linear alone.
void ExpectLinearsBits(Device& device, Matrix& x, ExpertInput input, const Routing& r, const ExpertWeight& w,
                       const std::vector<float>& bias, Matrix& y) {
  for (int64_t pair = 0; pair < r.routing.NumPairs(); ++pair) {
    const int64_t row = r.row_of[pair];
    const int64_t expert = r.ids[pair] - r.routing.first_expert;
    ASSERT_EQ(row >= 0, expert >= 0 && expert < r.routing.num_experts);
    if (row < 0) continue;
    Matrix alone(DataType::kF32, 1, w.first.n);
    const int64_t from = input == ExpertInput::kRows ? row : pair / r.routing.per_token;
    Linear(device, x.view(from, 1), w.Of(expert), bias.data() + expert * w.first.n, alone.view());
    ASSERT_EQ(y.Bytes(row), alone.Bytes(0)) << "pair " << pair << ", row " << row;
  }
}

// Rows of experts [first, 7) for some tokens, with activations of `act`: the tokens', and the routing's own.
void ExpectBitsOfLinear(CpuIsa isa, DataType type, DataType act, int64_t k, int64_t tokens, int64_t first) {
  SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(type) << ", " << tokens << " tokens");
  constexpr int64_t kExperts = 7, kN = 45, kPerToken = 3;
  const int64_t count = kExperts - first, pairs = tokens * kPerToken;
  Bench bench(isa, 1 + static_cast<int>(tokens % 4), Limits(pairs, count, kN, k));
  Routing r(tokens, kPerToken, first, count);
  RouteRandomly(*bench.device, kExperts, r);
  PackedExperts w(*bench.device, type, count, kN, k);
  const std::vector<float> bias = RandomFloats(count * kN, 5);
  for (const ExpertInput input : {ExpertInput::kTokens, ExpertInput::kRows}) {
    Matrix x(act, input == ExpertInput::kRows ? pairs : tokens, k, 2), y(DataType::kF32, pairs, kN, 3);
    x.Randomize(6);
    ExpertsLinear(*bench.device, x.view(), input, r.routing, w.weight, {bias.data(), kN}, y.view());
    ExpectLinearsBits(*bench.device, x, input, r, w.weight, bias, y);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST_P(ExpertsTest, RowsHaveTheBitsOfLinear) {
  for (const DataType type : {DataType::kF32, DataType::kBF16, DataType::kF16}) {
    for (const int64_t tokens : {1, 3, 40, 300}) {
      for (const int64_t first : {0, 3}) {
        ExpectBitsOfLinear(GetParam(), type, type, 130, tokens, first);
        if (HasFatalFailure()) return;
      }
    }
  }
}

class StoredExpertsTest : public testing::TestWithParam<CpuIsa> {};
INSTANTIATE_TEST_SUITE_P(Isas, StoredExpertsTest, testing::ValuesIn(AvailableIsas()), IsaName);

// Weights as a file stores them: an expert has a few rows, or so many that the weights are expanded.
TEST_P(StoredExpertsTest, RowsHaveTheBitsOfLinear) {
  for (const DataType type : {DataType::kQ8_0, DataType::kQ4_0, DataType::kQ4_K, DataType::kQ6_K,
                              DataType::kMXFP4, DataType::kF8E4M3}) {
    for (const auto& [tokens, act] :
         {std::pair{1, DataType::kF32}, {5, DataType::kBF16}, {40, DataType::kF16}, {300, DataType::kBF16}}) {
      ExpectBitsOfLinear(GetParam(), type, act, 256, tokens, /*first=*/3);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(ExpertsTest, SumsInTheOrderOfTheTokensExperts) {
  constexpr int64_t kTokens = 9, kPerToken = 3, kCols = 300;
  Bench bench(GetParam(), 2, {});
  Routing r(kTokens, kPerToken, 1, 5);  // expert 0 and the last are another rank's
  RouteRandomly(*bench.device, 7, r);
  Matrix x(DataType::kF32, kTokens * kPerToken, kCols), shared(DataType::kF32, kTokens, kCols);
  Matrix mix(DataType::kF32, kTokens, 1), out(DataType::kF32, kTokens, kCols, 5);
  x.Randomize(1);
  shared.Randomize(2);
  mix.Randomize(3);
  const auto expect = [&](bool with_shared, bool with_mix) {
    CombineExperts(*bench.device, x.view(), r.routing, with_shared ? shared.view() : TensorView(),
                   with_mix ? mix.view() : TensorView(), out.view());
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t c = 0; c < kCols; ++c) {
        double sum = 0;
        for (int64_t i = t * kPerToken; i < (t + 1) * kPerToken; ++i) {
          if (r.row_of[i] >= 0) sum += static_cast<double>(r.weights[i]) * x.Get(r.row_of[i], c);
        }
        if (with_shared) sum += shared.Get(t, c) * (with_mix ? 1 / (1 + std::exp(-mix.Get(t, 0))) : 1.0);
        ASSERT_NEAR(out.Get(t, c), sum, 1e-5) << "token " << t << ", column " << c;
      }
    }
  };
  expect(false, false);
  expect(true, false);
  expect(true, true);
}

}  // namespace
}  // namespace somnus
