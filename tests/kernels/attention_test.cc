// Cache writes and paged attention against softmax in double; independence of batch, chunks, placement and
// threads.

#include "tests/kernels/attention_test_util.h"

namespace somnus {
namespace {

using namespace kernel_test;

class AttentionTest : public testing::TestWithParam<CpuIsa> {};
INSTANTIATE_TEST_SUITE_P(Isas, AttentionTest, testing::ValuesIn(IsasWithOwnKernels()), IsaName);

TEST_P(AttentionTest, EqualsSoftmaxInDouble) {
  const Shape shapes[] = {{9, 3, 64, 16}, {2, 2, 8, 8},   {4, 1, 24, 32}, {3, 1, 80, 16}, {16, 8, 128, 16},
                          {1, 1, 16, 1},  {5, 2, 48, 24}, {2, 1, 40, 5},  {2, 2, 64, 80}, {71, 1, 32, 64}};
  for (const CacheTypes& types : CacheTypesOf(GetParam())) {
    for (const Shape& shape : shapes) {
      SCOPED_TRACE(testing::Message()
                   << "types " << static_cast<int>(types.cache) << " and " << static_cast<int>(types.out)
                   << ", " << shape.num_heads << " heads on " << shape.num_kv_heads << ", dim "
                   << shape.head_dim << ", block " << shape.block_size);
      Runner runner(GetParam(), 2, shape, types, 400);
      Sequence a(shape, 150, 1), b(shape, 33, 2), c(shape, 1, 3);
      // A long prompt, then a step of one decode, one prefill and one single token together.
      runner.Step({&a}, {149});
      std::vector<Sequence*> sequences = {&a, &b, &c};
      runner.Step(sequences, {1, 33, 1});
      int64_t row = 0;
      for (Sequence* s : sequences) {
        for (int64_t p = s == &a ? 149 : 0; p < s->done; ++p, ++row) {
          if (s == &b && p % 7 > 1) continue;
          for (int64_t h = 0; h < shape.num_heads; ++h) {
            const std::vector<double> want =
                Reference(*s, shape, types.cache, runner.kv_head_of_head()[h], h, p, runner.Scale());
            for (int64_t i = 0; i < shape.head_dim; ++i) {
              ASSERT_NEAR(runner.out().Get(row, h * shape.head_dim + i), want[i],
                          Tolerance(types.out, want[i]))
                  << "row " << row << ", position " << p << ", head " << h << ", dim " << i;
            }
          }
        }
      }
    }
  }
}

TEST_P(AttentionTest, HeadsMayBeServedByAnyKvHead) {
  const Shape shape{5, 3, 16, 16};
  Runner runner(GetParam(), 1, shape, {DataType::kF32, DataType::kF32}, 50);
  runner.kv_head_of_head() = {2, 0, 2, 0, 2};  // Nobody uses KV head 1.
  Sequence s(shape, 40, 1);
  runner.Step({&s}, {40});
  for (int64_t h = 0; h < 5; ++h) {
    const std::vector<double> want =
        Reference(s, shape, DataType::kF32, runner.kv_head_of_head()[h], h, 39, runner.Scale());
    for (int64_t i = 0; i < 16; ++i) EXPECT_NEAR(runner.out().Get(39, h * 16 + i), want[i], 2e-5);
  }
}

// Every row is bitwise the same whether its sequence ran token by token alone on one thread, or in chunks of
// any size among other sequences, in any blocks, on any number of threads.
TEST_P(AttentionTest, RowsDoNotDependOnBatchChunksPlacementOrThreads) {
  const Shape shapes[] = {{9, 3, 64, 16}, {4, 2, 24, 8}, {3, 1, 80, 32}, {6, 6, 16, 5}, {2, 1, 32, 100}};
  for (const CacheTypes& types : CacheTypesOf(GetParam())) {
    for (const Shape& shape : shapes) {
      const std::vector<int64_t> lengths = {1, 17, 130, 64, 211};
      std::vector<std::vector<std::string>> expected(lengths.size());
      for (size_t i = 0; i < lengths.size(); ++i) {
        Runner alone(GetParam(), 1, shape, types, 60);
        Sequence s(shape, lengths[i], static_cast<uint32_t>(i));
        for (int64_t t = 0; t < lengths[i]; ++t) expected[i].push_back(alone.Step({&s}, {1})[0]);
      }
      for (int round = 0; round < 6; ++round) {
        std::mt19937 random(static_cast<uint32_t>(round));
        Runner runner(GetParam(), 1 + round % 4, shape, types, 300);
        runner.ShuffleBlocks(static_cast<uint32_t>(round));
        std::vector<std::unique_ptr<Sequence>> sequences;
        for (size_t i = 0; i < lengths.size(); ++i) {
          sequences.push_back(std::make_unique<Sequence>(shape, lengths[i], static_cast<uint32_t>(i)));
        }
        while (true) {
          std::vector<Sequence*> chosen;
          std::vector<int64_t> counts;
          std::vector<std::pair<size_t, int64_t>> rows;
          for (size_t i = 0; i < lengths.size(); ++i) {
            const int64_t left = lengths[i] - sequences[i]->done;
            if (left == 0 || (round > 0 && random() % 3 == 0)) continue;
            const int64_t count =
                round == 0 ? left : std::min<int64_t>(left, 1 + random() % (round % 2 ? 8 : 100));
            for (int64_t t = 0; t < count; ++t) rows.push_back({i, sequences[i]->done + t});
            chosen.push_back(sequences[i].get());
            counts.push_back(count);
          }
          const bool finished = std::all_of(sequences.begin(), sequences.end(),
                                            [](const auto& s) { return s->done == s->qkv.rows(); });
          if (finished) break;
          if (chosen.empty()) continue;
          const std::vector<std::string> got = runner.Step(chosen, counts);
          for (size_t r = 0; r < rows.size(); ++r) {
            ASSERT_EQ(got[r], expected[rows[r].first][rows[r].second])
                << "types " << static_cast<int>(types.cache) << " and " << static_cast<int>(types.out)
                << ", head_dim " << shape.head_dim << ", round " << round << ", sequence " << rows[r].first
                << ", position " << rows[r].second;
          }
        }
      }
    }
  }
}

// A poisoned sequence's NaN stays in its rows, also for sequences that get its blocks afterwards.
TEST_P(AttentionTest, NanStaysInItsSequence) {
  const Shape shape{6, 2, 32, 16};
  for (const CacheTypes& types : kCacheTypes) {
    Runner runner(GetParam(), 2, shape, types, 20);
    Sequence bad(shape, 60, 1), good(shape, 47, 2), again(shape, 47, 2);
    for (int64_t c = 0; c < bad.qkv.cols(); ++c) bad.qkv.Set(20, c, NAN);
    const std::vector<std::string> both = runner.Step({&bad, &good}, {60, 47});
    for (int64_t t = 0; t < 20; ++t) EXPECT_TRUE(std::isfinite(runner.out().Get(t, 0))) << t;
    EXPECT_TRUE(std::isnan(runner.out().Get(20, 0)));
    for (int64_t t = 60; t < 107; ++t) EXPECT_TRUE(std::isfinite(runner.out().Get(t, 0)));
    again.blocks = bad.blocks;
    const std::vector<std::string> reused = runner.Step({&again}, {47});
    for (int64_t t = 0; t < 47; ++t) EXPECT_EQ(reused[t], both[60 + t]);
  }
}

// A single query, whose chunks of bytes are computed in a shorter way where no byte is NaN.
TEST_P(AttentionTest, ANanKeyOrValueReachesADecode) {
  const Shape shape{6, 2, 32, 16};
  const int64_t first_key = shape.num_heads * shape.head_dim;
  const int64_t first_value = first_key + shape.num_kv_heads * shape.head_dim;
  for (const CacheTypes& types : kCacheTypes) {
    for (const int64_t column : {first_key, first_value}) {
      Runner runner(GetParam(), 1, shape, types, 20);
      Sequence s(shape, 100, 1);
      s.qkv.Set(90, column, NAN);
      runner.Step({&s}, {99});
      runner.Step({&s}, {1});
      EXPECT_TRUE(std::isnan(runner.out().Get(0, 0))) << static_cast<int>(types.cache) << " " << column;
      EXPECT_TRUE(std::isfinite(runner.out().Get(0, 5 * shape.head_dim))) << "of the other KV head";
    }
  }
}

TEST_P(AttentionTest, NormsAndRotatesLikeHuggingFace) {
  constexpr int64_t kHeads = 3, kKvHeads = 2, kDim = 24, kTokens = 9;
  const std::vector<float> q_norm = RandomFloats(kDim, 1), k_norm = RandomFloats(kDim, 2);
  std::vector<float> cos(20 * kDim / 2), sin(cos.size());
  for (size_t i = 0; i < cos.size(); ++i) {
    cos[i] = std::cos(0.3f * static_cast<float>(i));
    sin[i] = std::sin(0.3f * static_cast<float>(i));
  }
  for (const bool with_norm : {false, true}) {
    Bench bench(GetParam(), 2, {.num_heads = kHeads, .head_dim = kDim, .block_size = 16});
    Buffer data(2 * KvBlockBytes(*bench.device, DataType::kF32, 16, kKvHeads, kDim));
    const KvCacheView cache{data.as<void>(), DataType::kF32, 2, 16, kKvHeads, kDim};
    Matrix qkv(DataType::kF32, kTokens, (kHeads + 2 * kKvHeads) * kDim),
        before(DataType::kF32, kTokens, qkv.cols());
    qkv.Randomize(3);
    before.Randomize(3);
    std::vector<int32_t> positions, slots;
    for (int32_t t = 0; t < kTokens; ++t) {
      positions.push_back(19 - 2 * t);
      slots.push_back(16 + t);
    }
    const AttentionBatch batch{
        .num_tokens = kTokens, .positions = positions.data(), .slot_mapping = slots.data()};
    QkNormRopeAndCache(*bench.device, qkv.view(), kHeads, with_norm ? q_norm.data() : nullptr,
                       with_norm ? k_norm.data() : nullptr, 1e-5, {cos.data(), sin.data()}, batch, cache);
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t h = 0; h < kHeads + kKvHeads; ++h) {
        std::vector<double> x(kDim);
        double squares = 0;
        for (int64_t i = 0; i < kDim; ++i) squares += std::pow(x[i] = before.Get(t, h * kDim + i), 2);
        for (int64_t i = 0; i < kDim && with_norm; ++i) {
          x[i] *= (h < kHeads ? q_norm : k_norm)[i] / std::sqrt(squares / kDim + 1e-5);
        }
        for (int64_t i = 0; i < kDim / 2; ++i) {
          const double c = cos[positions[t] * kDim / 2 + i], s = sin[positions[t] * kDim / 2 + i];
          EXPECT_NEAR(qkv.Get(t, h * kDim + i), x[i] * c - x[i + kDim / 2] * s, 1e-5);
          EXPECT_NEAR(qkv.Get(t, h * kDim + i + kDim / 2), x[i + kDim / 2] * c + x[i] * s, 1e-5);
        }
      }
      for (int64_t c = (kHeads + kKvHeads) * kDim; c < qkv.cols(); ++c)
        EXPECT_EQ(qkv.Get(t, c), before.Get(t, c));
    }
  }
}

TEST_P(AttentionTest, CopiedBlocksServeAsTheirSource) {
  const Shape shape{4, 2, 16, 16};
  for (const CacheTypes& types : kCacheTypes) {
    Runner runner(GetParam(), 2, shape, types, 30);
    Sequence original(shape, 41, 1), fork(shape, 41, 1);
    runner.Step({&original}, {40});
    const int32_t destination[] = {25, 26, 27};
    CopyBlocks(runner.device(), &runner.view(), 1, original.blocks.data(), destination, 3);
    fork.blocks = {25, 26, 27};
    fork.done = 40;
    EXPECT_EQ(runner.Step({&original}, {1}), runner.Step({&fork}, {1}));
  }
}

// A token's V through a cache of 8 bits, as returned by attention over this token alone.
std::vector<float> ThroughCache(CpuIsa isa, const CacheTypes& types, const std::vector<float>& v,
                                float v_scale = 1) {
  const int64_t head_dim = static_cast<int64_t>(v.size());
  Bench bench(isa, 1, {.num_heads = 1, .head_dim = head_dim, .block_size = 16});
  Buffer data(2 * KvBlockBytes(*bench.device, types.cache, 16, 1, head_dim));
  const KvCacheView cache{data.as<void>(), types.cache, 2, 16, 1, head_dim, 1, v_scale};
  Matrix qkv(DataType::kF32, 1, 3 * head_dim), out(types.out, 1, head_dim);
  for (int64_t i = 0; i < head_dim; ++i) qkv.Set(0, 2 * head_dim + i, v[i]);
  const int32_t starts[] = {0, 1}, context = 1, table = 1, position = 0, slot = 16, kv_head = 0;
  const AttentionBatch batch{.num_seqs = 1,
                             .num_tokens = 1,
                             .query_start = starts,
                             .context_len = &context,
                             .block_tables = &table,
                             .max_blocks_per_seq = 1,
                             .positions = &position,
                             .slot_mapping = &slot};
  QkNormRopeAndCache(*bench.device, qkv.view(), 1, nullptr, nullptr, 1e-5, {}, batch, cache);
  PagedAttention(*bench.device, qkv.view(), 1, &kv_head, {}, batch, cache, out.view());
  std::vector<float> values;
  for (int64_t i = 0; i < head_dim; ++i) values.push_back(out.Get(0, i));
  return values;
}

// Every code, every tie between two codes and the tie's neighbours, numbers that saturate and subnormal
// numbers, with both signs; with NaN in between, and without.
TEST_P(AttentionTest, Float8HoldsTheNearestValue) {
  std::vector<float> values = {448, 449, 463.9f, 464, 465, 1e6f, INFINITY, 1e-30f, 1e-45f};
  for (int code = 0; code < 0x7f; ++code) {
    const float value = static_cast<float>(F8ToDouble(static_cast<uint8_t>(code)));
    const float next = code == 0x7e ? 480 : static_cast<float>(F8ToDouble(static_cast<uint8_t>(code + 1)));
    const float tie = (value + next) / 2;
    for (const float x : {value, tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e9f)})
      values.push_back(x);
  }
  values.resize(528);  // as much as whole vectors hold
  for (const float last : {0.0f, NAN}) {
    values.back() = last;
    for (const float sign : {1.0f, -1.0f}) {
      std::vector<float> halves;
      for (const float x : values) halves.push_back(sign * x / 2);
      const std::vector<float> got =
          ThroughCache(GetParam(), {DataType::kF8E4M3, DataType::kF32}, halves, 0.5f);
      for (size_t i = 0; i < values.size(); ++i) {
        const float want = Round(DataType::kF8E4M3, sign * values[i]) / 2;
        if (std::isnan(want)) {
          EXPECT_TRUE(std::isnan(got[i])) << values[i];
        } else {
          EXPECT_EQ(got[i], want) << sign * values[i];
        }
      }
    }
  }
}

// Every code, every tie between two codes and the tie's neighbours, with both signs. Where the largest
// magnitude is 127 times a power of two, that is the scale.
TEST_P(AttentionTest, Int8HoldsTheNearestValue) {
  std::vector<float> codes = {127, 1e-30f, 1e-45f, 0};
  for (int code = 0; code < 127; ++code) {
    const float value = static_cast<float>(code), tie = value + 0.5f;
    for (const float x : {value, tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e9f)})
      codes.push_back(x);
  }
  for (const float scale : {1.0f, -1.0f, 0x1p-20f, -0x1p+40f, 0x1p-106f}) {
    std::vector<float> values;
    for (const float code : codes) values.push_back(code * scale);
    const std::vector<float> got = ThroughCache(GetParam(), {DataType::kI8, DataType::kF32}, values);
    for (size_t i = 0; i < codes.size(); ++i) {
      EXPECT_EQ(got[i], std::nearbyintf(codes[i]) * scale) << codes[i] << " times " << scale;
    }
  }
}

TEST_P(AttentionTest, Int8ScalesOfHeadsWithoutALargestValue) {
  const auto through = [](std::vector<float> values) {
    return ThroughCache(GetParam(), {DataType::kI8, DataType::kF32}, values);
  };
  const std::vector<float> zeros(20, 0.0f);
  EXPECT_EQ(through(zeros), zeros);
  EXPECT_EQ(through(std::vector<float>(20, std::nextafter(kLeastI8Magnitude, 0.0f))), zeros);
  EXPECT_NEAR(through(std::vector<float>(20, -kLeastI8Magnitude))[19] / -kLeastI8Magnitude, 1, 1e-6);
  EXPECT_NEAR(through(std::vector<float>(20, 3e38f))[19] / 3e38f, 1, 1e-6);
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    std::vector<float> values(20, 1.0f);
    values[17] = bad;
    for (const float got : through(values)) EXPECT_TRUE(std::isnan(got)) << bad;
  }
}

// Magnitudes from token to token and from head to head are far apart: a scale that two heads or tokens share
// would lose the smaller magnitude. With bf16 activations summands may be rounded to bf16.
TEST_P(AttentionTest, Int8ScalesAreOfOneTokenAndHead) {
  const CacheTypes all_types[] = {{DataType::kI8, DataType::kF32}, {DataType::kI8, DataType::kBF16}};
  for (const CacheTypes& types : all_types) {
    for (const Shape& shape : {Shape{4, 2, 64, 16}, Shape{3, 3, 24, 5}, Shape{2, 1, 32, 100}}) {
      Runner runner(GetParam(), 2, shape, types, 60);
      Sequence s(shape, 130, 4);
      const int64_t kv = shape.num_kv_heads * shape.head_dim, k = shape.num_heads * shape.head_dim;
      for (int64_t p = 0; p < 130; ++p) {
        for (int64_t i = 0; i < kv; ++i) {
          const int64_t head = i / shape.head_dim;
          s.qkv.Set(p, k + i, s.qkv.Get(p, k + i) * std::ldexp(1.3f, -static_cast<int>((p + head) % 7)));
          s.qkv.Set(p, k + kv + i, s.qkv.Get(p, k + kv + i) * std::ldexp(1.3f, (p * 5 + head) % 9 - 8));
        }
      }
      runner.Step({&s}, {130});
      for (int64_t h = 0; h < shape.num_heads; ++h) {
        const int64_t v = k + kv + runner.kv_head_of_head()[h] * shape.head_dim;
        for (const int64_t p : {0, 1, 18, 129}) {
          const std::vector<double> want =
              Reference(s, shape, DataType::kI8, runner.kv_head_of_head()[h], h, p, runner.Scale());
          for (int64_t i = 0; i < shape.head_dim; ++i) {
            double largest = 0;
            for (int64_t t = 0; t <= p; ++t)
              largest = std::max(largest, std::fabs(double{s.qkv.Get(t, v + i)}));
            const double rounding = types.out == DataType::kF32 ? 2e-6 + 2e-5 * std::fabs(want[i])
                                                                : 2 * Epsilon(types.out) * largest;
            ASSERT_NEAR(runner.out().Get(p, h * shape.head_dim + i), want[i], rounding)
                << "position " << p << ", head " << h << ", dim " << i;
          }
        }
      }
    }
  }
}

// All bytes at once: bf16 holds the value of each byte, on every way of computing.
TEST_P(AttentionTest, EveryByteComesBackWithBf16Activations) {
  std::vector<float> floats, integers;
  for (int code = 0; code < 256; ++code) {
    floats.push_back(static_cast<float>(F8ToDouble(static_cast<uint8_t>(code))));
    integers.push_back(static_cast<float>(std::max(code - 128, -127)));
  }
  EXPECT_EQ(ThroughCache(GetParam(), {DataType::kI8, DataType::kBF16}, integers), integers);
  const std::vector<float> got = ThroughCache(GetParam(), {DataType::kF8E4M3, DataType::kBF16}, floats);
  for (int code = 0; code < 256; ++code) {
    EXPECT_TRUE(got[code] == floats[code] || (std::isnan(got[code]) && std::isnan(floats[code]))) << code;
  }
}

TEST_P(AttentionTest, EightBitsTakeHalfOfTheBytesAndTheirScales) {
  const auto device = MakeDevice(GetParam(), 1);
  for (const Shape& shape : {Shape{9, 3, 64, 16}, Shape{2, 2, 8, 16}, Shape{32, 8, 128, 32}}) {
    const auto bytes = [&](DataType type) {
      return KvBlockBytes(*device, type, shape.block_size, shape.num_kv_heads, shape.head_dim);
    };
    EXPECT_EQ(2 * bytes(DataType::kF8E4M3), bytes(DataType::kBF16)) << shape.head_dim;
    const int64_t scales = shape.num_kv_heads * 2 * shape.block_size * 4;
    EXPECT_EQ(bytes(DataType::kI8), bytes(DataType::kF8E4M3) + scales) << shape.head_dim;
  }
}

}  // namespace
}  // namespace somnus
