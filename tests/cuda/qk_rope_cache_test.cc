// QK-norm, rotary embedding and the cache write against the CPU's qkv, and the cache against what it should
// hold.

#include <cstring>
#include <optional>

#include "tests/cuda/rows_test_util.h"

namespace somnus {
namespace {

using namespace cuda_test;
using kernel_test::Matrix;

struct Shape {
  int64_t num_heads, num_kv_heads, head_dim, block_size;
};

// Odd ratios, single heads, head_dims of models, tails of every kind, more heads than a block takes.
constexpr Shape kShapes[] = {{9, 3, 64, 16},   {4, 2, 16, 16}, {5, 3, 80, 8}, {32, 8, 128, 16},
                             {2, 1, 256, 32},  {3, 2, 24, 5},  {1, 1, 96, 1}, {2, 2, 6, 16},
                             {3, 1, 1024, 16}, {40, 1, 64, 16}};

constexpr int64_t kPositions = 50, kNumBlocks = 6;
constexpr double kEps = 1e-5;

// Inputs and results of one call.
struct Options {
  DataType type;
  std::optional<DataType> cache = {};  // kF8E4M3 or kI8; else `type`
  bool q_norm = false, k_norm = false, rope = true, q_scale = false;
  Layout layout = {};
  float k_scale = 1, v_scale = 1;
};

class Run {
 public:
  Run(const Shape& shape, const Options& options, std::vector<int32_t> positions, std::vector<int32_t> slots)
      : shape_(shape),
        options_(options),
        slots_(std::move(slots)),
        tokens_(static_cast<int64_t>(slots_.size())),
        width_((shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim),
        qkv_(options.type, tokens_, width_, options.layout),
        want_(DataType::kF32, tokens_, width_),
        before_(DataType::kF32, tokens_, width_),
        cache_(options.cache.value_or(options.type), kNumBlocks, 2 * shape.num_kv_heads * RunElements()) {
    qkv_.Randomize(7, 1, &want_);
    for (int64_t t = 0; t < tokens_; ++t) std::copy_n(want_.row(t), width_, before_.row(t));
    const std::vector<float> angles = kernel_test::RandomFloats(kPositions * shape.head_dim / 2 + 1, 3, 3);
    std::vector<float> cos, sin;
    for (float angle : angles) {
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
    DeviceArray<float> q_norm(kernel_test::RandomFloats(shape.head_dim, 1)),
        k_norm(kernel_test::RandomFloats(shape.head_dim, 2)), cos_table(cos), sin_table(sin),
        q_scales(kernel_test::RandomFloats(kPositions, 4, 2));
    DeviceArray<int32_t> device_positions(positions), device_slots(slots_);
    const std::unique_ptr<Device> device = MakeCudaDevice(), cpu = Oracle();
    const auto run = [&](Device& on, const TensorView& qkv, const KvCacheView& cache) {
      const AttentionBatch batch{
          .num_tokens = tokens_, .positions = device_positions.On(on), .slot_mapping = device_slots.On(on)};
      RopeTable rope = options.rope ? RopeTable{cos_table.On(on), sin_table.On(on)} : RopeTable{};
      if (options.q_scale) rope.q_scale = q_scales.On(on);
      QkNormRopeAndCache(on, qkv, shape.num_heads, options.q_norm ? q_norm.On(on) : nullptr,
                         options.k_norm ? k_norm.On(on) : nullptr, kEps, rope, batch, cache);
    };
    run(*device, qkv_.view(), CacheView());
    EXPECT_TRUE(device->Synchronize().ok());
    kernel_test::Buffer oracle_cache(kNumBlocks * KvBlockBytes(*cpu, DataType::kF32, shape.block_size,
                                                               shape.num_kv_heads, shape.head_dim));
    run(*cpu, want_.view(),
        {oracle_cache.as<void>(), DataType::kF32, kNumBlocks, shape.block_size, shape.num_kv_heads,
         shape.head_dim});
  }

  void Check() {
    contents_ = cache_.Contents();
    for (int64_t t = 0; t < tokens_; ++t) CheckRow(t);
    CheckUnwritten();
  }

 private:
  KvCacheView CacheView() {
    return {cache_.view().data,  options_.cache.value_or(options_.type),
            kNumBlocks,          shape_.block_size,
            shape_.num_kv_heads, shape_.head_dim,
            options_.k_scale,    options_.v_scale};
  }
  bool f8() const { return options_.cache == DataType::kF8E4M3; }
  bool i8() const { return options_.cache == DataType::kI8; }
  // In elements. Of i8: the tokens' scales, then their values, each padded to 16 bytes.
  int64_t RunHeader() const { return i8() ? (shape_.block_size + 3) / 4 * 16 : 0; }
  int64_t RunElements() const {
    const int64_t values = shape_.block_size * shape_.head_dim;
    return RunHeader() + (i8() ? (values + 15) / 16 * 16 : values);
  }
  int64_t RunStart(int64_t slot, int64_t kv_head, bool v) const {
    return ((slot / shape_.block_size * shape_.num_kv_heads + kv_head) * 2 + v) * RunElements();
  }
  int64_t CacheIndex(int64_t slot, int64_t kv_head, bool v, int64_t d) const {
    return RunStart(slot, kv_head, v) + RunHeader() + slot % shape_.block_size * shape_.head_dim + d;
  }
  double Cached(int64_t index) {
    return f8() ? kernel_test::F8ToDouble(static_cast<uint8_t>(contents_[index]))
                : cache_.Get(index / cache_.cols(), index % cache_.cols());
  }

  // q and k: f32 sums of head_dim squares in another order, fused or not multiply-adds, then one rounding. v:
  // untouched.
  void CheckRow(int64_t t) {
    const int64_t d = shape_.head_dim, k_begin = shape_.num_heads * d,
                  v_begin = k_begin + shape_.num_kv_heads * d;
    for (int64_t c = 0; c < width_; ++c) {
      const double want = want_.Get(t, c);
      const bool same =
          c >= v_begin ||
          (!options_.rope && (c < k_begin ? !options_.q_norm && !options_.q_scale : !options_.k_norm));
      if (same) {
        ASSERT_EQ(qkv_.Get(t, c), before_.Get(t, c)) << "row " << t << ", column " << c;
      } else {
        ASSERT_NEAR(qkv_.Get(t, c), want, Allowed(options_.type, want, 2e-6))
            << "row " << t << ", column " << c;
      }
      if (c < k_begin || slots_[t] < shape_.block_size) continue;  // block 0 holds whichever came last
      const bool v = c >= v_begin;
      const int64_t at = c - (v ? v_begin : k_begin);
      const int64_t index = CacheIndex(slots_[t], at / d, v, at % d);
      written_.push_back(index);
      const double value = v ? before_.Get(t, c) : want;
      i8() ? CheckInt8(t, at / d, v, at % d, value) : CheckCached(index, value, v);
    }
  }
  // The scale is the head's largest magnitude / 127, and the value the nearest multiple of it.
  void CheckInt8(int64_t t, int64_t kv_head, bool v, int64_t dim, double value) {
    const int64_t scale_at = RunStart(slots_[t], kv_head, v) + slots_[t] % shape_.block_size * 4;
    for (int64_t b = 0; b < 4; ++b) written_.push_back(scale_at + b);
    float scale;
    std::memcpy(&scale, &contents_[scale_at], 4);
    const int64_t d = shape_.head_dim,
                  column = (shape_.num_heads + (v ? shape_.num_kv_heads : 0) + kv_head) * d;
    double largest = 0;
    for (int64_t i = 0; i < d; ++i)
      largest = std::max<double>(largest, std::fabs((v ? before_ : want_).Get(t, column + i)));
    ASSERT_NEAR(scale * 127, largest, 4e-6 * (1 + largest)) << "row " << t << ", KV head " << kv_head;
    const auto stored = static_cast<int8_t>(contents_[CacheIndex(slots_[t], kv_head, v, dim)]);
    ASSERT_NEAR(stored * scale, value, 0.5001 * scale + 4e-6 * (1 + largest))
        << "row " << t << ", dim " << dim;
  }
  void CheckCached(int64_t index, double value, bool v) {
    if (!f8()) {
      ASSERT_NEAR(Cached(index), value, Allowed(options_.type, value, 2e-6)) << "cache element " << index;
      return;
    }
    const double scaled = std::clamp(value / (v ? options_.v_scale : options_.k_scale), -448.0, 448.0);
    // Half a step of e4m3: 2^-4 of the value, 2^-10 below its normal numbers.
    ASSERT_NEAR(Cached(index), scaled, std::fabs(scaled) / 16 * 1.0001 + std::ldexp(1.0, -10)) << index;
  }
  // Everything but the tokens' slots and block 0 is as it was.
  void CheckUnwritten() {
    const int64_t bytes = SizeOf(options_.cache.value_or(options_.type));
    std::vector<bool> touched(kNumBlocks * cache_.cols());
    for (int64_t index : written_) touched[index] = true;
    for (int64_t i = cache_.cols(); i < kNumBlocks * cache_.cols(); ++i) {
      for (int64_t b = 0; b < bytes && !touched[i]; ++b)
        ASSERT_EQ(static_cast<unsigned char>(contents_[i * bytes + b]), DeviceMatrix::kGap) << i;
    }
  }

  Shape shape_;
  Options options_;
  std::vector<int32_t> slots_;
  int64_t tokens_, width_;
  DeviceMatrix qkv_;
  Matrix want_, before_;
  DeviceMatrix cache_;
  std::string contents_;  // of cache_
  std::vector<int64_t> written_;
};

// Scattered tokens over blocks 1 to 5; `padding` rows at the end.
void RunAndCheck(const Shape& shape, const Options& options, int64_t tokens, int64_t padding = 0) {
  SCOPED_TRACE(testing::Message() << NameOf(options.type)
                                  << (!options.cache                        ? ""
                                      : *options.cache == DataType::kF8E4M3 ? " into f8"
                                                                            : " into i8")
                                  << ", " << shape.num_heads << " heads on " << shape.num_kv_heads << ", dim "
                                  << shape.head_dim << ", block " << shape.block_size << ", q_norm "
                                  << options.q_norm << ", k_norm " << options.k_norm << ", rope "
                                  << options.rope << ", pad " << options.layout.pad << ", offset "
                                  << options.layout.offset << ", tokens " << tokens);
  std::vector<int32_t> positions, slots;
  for (int32_t s = static_cast<int32_t>(kNumBlocks * shape.block_size) - 1; s >= shape.block_size; --s) {
    slots.push_back(s);
  }
  std::shuffle(slots.begin(), slots.end(), std::mt19937(5));
  slots.resize(std::min<size_t>(slots.size(), tokens));
  for (size_t t = 0; t < slots.size(); ++t)
    positions.push_back(static_cast<int32_t>((t * 37 + 11) % kPositions));
  for (int64_t i = 0; i < padding; ++i) {
    slots.push_back(0);
    positions.push_back(0);
  }
  Run(shape, options, positions, slots).Check();
}

class QkRopeCacheTest : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(Types, QkRopeCacheTest, testing::ValuesIn(kActTypes), TypeName);

// By vectors and by elements, into caches of each type.
TEST_P(QkRopeCacheTest, SmallBatch) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  for (const int64_t head_dim : {16, 6}) {
    for (const DataType cache : {GetParam(), DataType::kF8E4M3, DataType::kI8})
      RunAndCheck({2, 1, head_dim, 16}, {.type = GetParam(), .cache = cache, .k_norm = true}, 2);
  }
}

TEST_P(QkRopeCacheTest, EqualsTheCpu) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  for (const Shape& shape : kShapes) {
    for (const Layout layout : kLayouts) {
      for (const bool norm : {false, true}) {
        RunAndCheck(shape, {.type = GetParam(), .q_norm = norm, .k_norm = norm, .layout = layout}, 5);
      }
    }
  }
}

TEST_P(QkRopeCacheTest, QueriesMayHaveFactors) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  for (const Shape& shape : {Shape{5, 2, 64, 16}, Shape{3, 2, 20, 16}}) {
    for (const bool rope : {false, true})
      RunAndCheck(shape, {.type = GetParam(), .k_norm = rope, .rope = rope, .q_scale = true}, 4);
  }
}

TEST_P(QkRopeCacheTest, NormsAndRotationAreEachOptional) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  for (const Shape& shape : {Shape{5, 2, 64, 16}, Shape{3, 2, 20, 16}}) {
    for (const int bits : {0, 1, 2, 3, 4, 5, 6, 7}) {
      RunAndCheck(
          shape,
          {.type = GetParam(), .q_norm = (bits & 1) != 0, .k_norm = (bits & 2) != 0, .rope = (bits & 4) != 0},
          4);
    }
  }
}

TEST_P(QkRopeCacheTest, OddHeadsWithoutRotation) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  for (const int64_t head_dim : {1, 7, 65}) {
    for (const bool norm : {false, true}) {
      RunAndCheck({3, 2, head_dim, 4}, {.type = GetParam(), .q_norm = norm, .k_norm = norm, .rope = false}, 6,
                  1);
    }
  }
}

TEST_P(QkRopeCacheTest, OneTokenManyTokensAndPadding) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  for (const Shape& shape : {Shape{9, 3, 64, 16}, Shape{5, 2, 12, 16}}) {
    for (const int64_t tokens : {0, 1, 80}) {
      for (const int64_t padding : {0, 3}) {
        RunAndCheck(shape, {.type = GetParam(), .q_norm = true, .k_norm = true}, tokens, padding);
      }
    }
  }
}

TEST_P(QkRopeCacheTest, Float8CacheHoldsScaledValues) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  for (const Shape& shape : kShapes) {
    RunAndCheck(
        shape,
        {.type = GetParam(), .cache = DataType::kF8E4M3, .k_norm = true, .k_scale = 0.37f, .v_scale = 0.011f},
        5, 2);
  }
  // Values beyond 448 scales saturate.
  RunAndCheck({2, 1, 32, 16},
              {.type = GetParam(), .cache = DataType::kF8E4M3, .k_scale = 0.001f, .v_scale = 0.002f}, 5);
  RunAndCheck(
      {2, 1, 7, 16},
      {.type = GetParam(), .cache = DataType::kF8E4M3, .rope = false, .k_scale = 3, .v_scale = 0.002f}, 5);
}

TEST_P(QkRopeCacheTest, Int8CacheHoldsValuesAndTheirScales) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  for (const Shape& shape : kShapes) {
    for (const bool norm : {false, true})
      RunAndCheck(shape, {.type = GetParam(), .cache = DataType::kI8, .k_norm = norm}, 5, 2);
  }
  RunAndCheck({2, 1, 7, 16}, {.type = GetParam(), .cache = DataType::kI8, .rope = false}, 5);
}

}  // namespace
}  // namespace somnus
