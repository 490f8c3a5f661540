// The changes of logits before sampling, against a plain model over lists of tokens, bit by bit; and the fill
// of random weights.

#include <cmath>
#include <limits>
#include <map>

#include "kernels/counter_random.h"
#include "tests/kernels/kernel_test_util.h"

namespace somnus {
namespace {

using namespace kernel_test;

const float kNever = -std::numeric_limits<float>::infinity();

class LogitsTest : public testing::TestWithParam<CpuIsa> {};
INSTANTIATE_TEST_SUITE_P(Isas, LogitsTest, testing::ValuesIn(IsasWithOwnKernels()), IsaName);

// A request's sampling parameters, and its tokens so far.
struct Wish {
  std::vector<int32_t> allowed = {};
  std::vector<int32_t> forbidden = {};
  std::map<int32_t, float> bias = {};
  float repetition = 1, frequency = 0, presence = 0;
  std::vector<int32_t> prompt = {}, outputs = {};
};

std::vector<float> Adjust(const Wish& wish, std::vector<float> logits) {
  if (!wish.allowed.empty()) {
    std::vector<float> kept(logits.size(), kNever);
    for (int32_t id : wish.allowed) kept[id] = logits[id];
    logits = kept;
  }
  for (int32_t id : wish.forbidden) logits[id] = kNever;
  for (const auto& [id, bias] : wish.bias) logits[id] += bias;
  std::map<int32_t, int> counts;
  for (int32_t id : wish.prompt) counts[id] += 0;
  for (int32_t id : wish.outputs) ++counts[id];
  for (const auto& [id, count] : counts) {
    float& logit = logits[id];
    logit = logit > 0 ? logit / wish.repetition : logit * wish.repetition;
    logit -= wish.frequency * static_cast<float>(count);
    if (count > 0) logit -= wish.presence;
  }
  return logits;
}

std::vector<int32_t> SomeIds(int64_t vocab, size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(random() % vocab));
  return ids;
}

std::vector<Wish> Wishes(int64_t vocab) {
  std::vector<Wish> wishes(6);
  for (int32_t id = 0; id < vocab; ++id) {  // whole words of the mask, and a word that lacks a token
    if (id != vocab / 2) wishes[0].allowed.push_back(id);
  }
  wishes[1].allowed = SomeIds(vocab, 9, 1);
  wishes[1].forbidden = {wishes[1].allowed[0]};
  wishes[2].bias = {{0, 1.5f}, {static_cast<int32_t>(vocab - 1), -100.0f}};
  wishes[2].forbidden = {0};
  wishes[3] = {.repetition = 1.3f, .frequency = 0.37f, .presence = -0.2f};
  wishes[4] = {.forbidden = {3}, .repetition = 0.7f, .frequency = -1.1f, .presence = 2};
  wishes[5] = {.repetition = 1.1f};
  for (size_t i = 3; i < 6; ++i) {
    wishes[i].prompt = SomeIds(vocab, 50, static_cast<uint32_t>(i));
    wishes[i].outputs = SomeIds(vocab, i == 5 ? 0 : 200, 100 + static_cast<uint32_t>(i));
  }
  return wishes;
}

void Apply(Device* device, const TensorView& logits, const std::vector<Wish>& wishes) {
  const int64_t vocab = logits.cols, words = (vocab + 31) / 32,
                slots = static_cast<int64_t>(wishes.size()) + 1;
  Buffer outputs(slots * vocab * 4), in_prompt(slots * words * 4);
  std::fill_n(outputs.as<int32_t>(), slots * vocab, 7);  // of former sequences
  std::fill_n(in_prompt.as<uint32_t>(), slots * words, 0x5a5a5a5au);
  const TokenCounts counts{
      .outputs = outputs.as<int32_t>(), .in_prompt = in_prompt.as<uint32_t>(), .vocab = vocab};
  std::vector<int32_t> masked_rows, cleared = {-1};
  std::vector<uint32_t> masks;
  std::vector<LogitEdit> edits;
  std::vector<PenaltyRow> penalties;
  for (int32_t r = 0; r < static_cast<int32_t>(wishes.size()); ++r) {
    const Wish& wish = wishes[r];
    if (!wish.allowed.empty()) {
      masked_rows.push_back(r);
      masks.resize(masks.size() + words);
      for (int32_t id : wish.allowed) masks[masks.size() - words + id / 32] |= 1u << (id % 32);
    }
    std::map<int32_t, float> addends = wish.bias;
    for (int32_t id : wish.forbidden) addends[id] = kNever;
    for (const auto& [id, addend] : addends) edits.push_back({r, id, addend});
    const bool penalized = !wish.prompt.empty();
    penalties.push_back({penalized ? r + 1 : -1, wish.repetition, wish.frequency, wish.presence});
    if (penalized) cleared.push_back(r + 1);
  }
  ClearTokenCounts(*device, counts, cleared.data(), static_cast<int64_t>(cleared.size()));
  for (int32_t r = 0; r < static_cast<int32_t>(wishes.size()); ++r) {
    const Wish& wish = wishes[r];
    MarkPromptTokens(*device, counts, r + 1, wish.prompt.data(), static_cast<int64_t>(wish.prompt.size()));
    std::vector<int32_t> ids = wish.outputs, own(wish.outputs.size(), r + 1);
    ids.insert(ids.end(), {-1, 5});
    own.insert(own.end(), {r + 1, -1});  // both are skipped
    CountTokens(*device, counts, own.data(), ids.data(), static_cast<int64_t>(ids.size()));
  }
  KeepAllowed(*device, logits, masked_rows.data(), masks.data(), static_cast<int64_t>(masked_rows.size()));
  EditLogits(*device, logits, edits.data(), static_cast<int64_t>(edits.size()));
  ApplyPenalties(*device, logits, penalties.data(), counts);
}

TEST_P(LogitsTest, EqualAPlainModel) {
  for (const int64_t vocab : {7, 32, 100, 1001}) {
    Bench bench(GetParam(), 2, {.max_seqs = 6, .vocab_size = vocab});
    const std::vector<Wish> wishes = Wishes(vocab);
    Matrix x(DataType::kF32, static_cast<int64_t>(wishes.size()), vocab, 5);
    x.Randomize(static_cast<uint32_t>(vocab), 3);
    for (int64_t r = 0; r < x.rows(); ++r) {
      x.Set(r, 0, r % 2 ? NAN : std::numeric_limits<float>::infinity());
      x.Set(r, 2, -0.0f);
    }
    std::vector<std::vector<float>> want;
    for (int64_t r = 0; r < x.rows(); ++r) want.push_back(Adjust(wishes[r], {x.row(r), x.row(r) + vocab}));
    Apply(bench.device.get(), x.view(), wishes);
    for (int64_t r = 0; r < x.rows(); ++r) {
      EXPECT_EQ(x.Bytes(r), std::string(reinterpret_cast<const char*>(want[r].data()), vocab * 4))
          << "row " << r << ", vocabulary " << vocab;
    }
  }
}

// The published value for key 0 and counter 0 (Random123's known-answer tests).
TEST(CounterRandomTest, KnownAnswer) {
  const auto high = [](uint32_t a, uint32_t b) {
    return static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32);
  };
  EXPECT_EQ(CounterBits(0u, 0u, 0, high), 0x6627e8d5u);
}

TEST_P(LogitsTest, FillRandomIsUniformAndByIndexAlone) {
  constexpr int64_t kCount = 20000;
  constexpr float kScale = 0.02f;
  for (const DataType type : {DataType::kF32, DataType::kBF16, DataType::kF16}) {
    Matrix whole(type, 1, kCount), part(type, 1, 1003), other(type, 1, kCount);
    Bench two(GetParam(), 2, {}), one(GetParam(), 1, {});
    FillRandom(*two.device, whole.view().data, type, kCount, 5, kScale);
    FillRandom(*one.device, part.view().data, type, 1003, 5, kScale);
    FillRandom(*one.device, other.view().data, type, kCount, uint64_t{5} << 32, kScale);
    EXPECT_EQ(whole.Bytes(0).substr(0, 1003 * SizeOf(type)), part.Bytes(0));
    EXPECT_NE(whole.Bytes(0), other.Bytes(0));
    double sum = 0, squares = 0, neighbours = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      const double x = whole.Get(0, i) / kScale;
      ASSERT_LE(std::fabs(x), 1 + Epsilon(type));
      sum += x;
      squares += x * x;
      neighbours += x * (whole.Get(0, (i + 1) % kCount) / kScale);
    }
    // Deviations of the means: sqrt(1/3), sqrt(4/45) and 1/3 over sqrt(n); five of them.
    EXPECT_LT(std::fabs(sum / kCount), 5 * 0.578 / std::sqrt(kCount));
    EXPECT_NEAR(squares / kCount, 1.0 / 3, 5 * 0.299 / std::sqrt(kCount));
    EXPECT_LT(std::fabs(neighbours / kCount), 5 * 0.334 / std::sqrt(kCount));
  }
}

// By the definition, so that every instruction set gives the same bits.
TEST_P(LogitsTest, FillRandomEqualsItsDefinition) {
  const auto high = [](uint32_t a, uint32_t b) {
    return static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32);
  };
  for (const int64_t count : {1, 15, 16, 17, 100}) {
    Matrix x(DataType::kF32, 1, count);
    Bench bench(GetParam(), 1, {});
    FillRandom(*bench.device, x.view().data, DataType::kF32, count, 99, 0.3f);
    for (int64_t i = 0; i < count; ++i) {
      const auto word = static_cast<int32_t>(CounterBits(static_cast<uint32_t>(i), 0u, 99, high));
      EXPECT_EQ(x.Get(0, i), static_cast<float>(word) * 0x1p-31f * 0.3f) << i;
    }
  }
}

}  // namespace
}  // namespace somnus
