// A cache of 8 bits from the write to attention's output: both ops on CUDA against both ops on the CPU, each
// with a cache in the device's layout.

#include "tests/cuda/rows_test_util.h"

namespace somnus {
namespace {

using namespace cuda_test;
using kernel_test::Matrix;

constexpr float kKScale = 0.3f, kVScale = 0.07f;
constexpr int64_t kBlockSize = 16, kBlocks = 12, kPositions = 64;

struct Shape {
  int64_t num_heads, num_kv_heads, head_dim;
};

// The arrays of a batch, once for each device.
struct Arrays {
  std::vector<int32_t> query_start, context_len, tables, positions, slots, kv_head_of_head;
};

AttentionBatch BatchOf(const Arrays& a, int64_t num_decodes) {
  AttentionBatch batch;
  batch.num_seqs = static_cast<int64_t>(a.context_len.size());
  batch.num_tokens = a.query_start.back();
  batch.num_decodes = num_decodes;
  for (int64_t i = 0; i < batch.num_seqs; ++i) {
    batch.max_query_len = std::max<int64_t>(batch.max_query_len, a.query_start[i + 1] - a.query_start[i]);
    batch.max_context_len = std::max<int64_t>(batch.max_context_len, a.context_len[i]);
  }
  batch.max_blocks_per_seq = static_cast<int64_t>(a.tables.size()) / batch.num_seqs;
  return batch;
}

// Sequence i's tokens [done[i], done[i] + counts[i]); the blocks are 1 + i, then every second block.
Arrays ArraysOf(const std::vector<int64_t>& done, const std::vector<int64_t>& counts, const Shape& shape) {
  constexpr int64_t kPerSeq = 5;
  const int64_t num_seqs = static_cast<int64_t>(done.size());
  Arrays a;
  a.query_start.push_back(0);
  for (int64_t i = 0; i < num_seqs; ++i) {
    for (int64_t b = 0; b < kPerSeq; ++b) a.tables.push_back(static_cast<int32_t>(1 + i + b * num_seqs));
    for (int64_t p = done[i]; p < done[i] + counts[i]; ++p) {
      a.positions.push_back(static_cast<int32_t>(p));
      a.slots.push_back(
          static_cast<int32_t>(a.tables[i * kPerSeq + p / kBlockSize] * kBlockSize + p % kBlockSize));
    }
    a.query_start.push_back(static_cast<int32_t>(a.positions.size()));
    a.context_len.push_back(static_cast<int32_t>(done[i] + counts[i]));
  }
  for (int64_t h = 0; h < shape.num_heads; ++h)
    a.kv_head_of_head.push_back(static_cast<int32_t>(h * shape.num_kv_heads / shape.num_heads));
  return a;
}

class Pair {
 public:
  Pair(const Shape& shape, DataType act, DataType cache, bool rotates)
      : shape_(shape),
        act_(act),
        cache_(cache),
        rotates_(rotates),
        cpu_(CpuIsa::kBest, 1, Limits()),
        cuda_(Limits()),
        cpu_memory_(kBlocks * Bytes(*cpu_.device)),
        cuda_memory_(kBlocks * Bytes(*cuda_.device)),
        cos_host_(kPositions * shape.head_dim / 2),
        sin_host_(cos_host_.size()) {
    for (size_t i = 0; i < cos_host_.size(); ++i) {
      cos_host_[i] = std::cos(0.3f * static_cast<float>(i));
      sin_host_[i] = std::sin(0.3f * static_cast<float>(i));
    }
  }

  // Both ops on both devices over qkv's rows; the outputs in f32, CUDA's first.
  std::pair<Matrix*, Matrix*> Step(const std::vector<int64_t>& done, const std::vector<int64_t>& counts,
                                   DeviceMatrix& qkv, int64_t num_decodes = 0) {
    const Arrays a = ArraysOf(done, counts, shape_);
    Matrix host(DataType::kF32, qkv.rows(), qkv.cols());
    for (int64_t r = 0; r < qkv.rows(); ++r) {
      for (int64_t c = 0; c < qkv.cols(); ++c) host.Set(r, c, qkv.Get(r, c));
    }
    const int64_t width = shape_.num_heads * shape_.head_dim;
    DeviceMatrix out(act_, qkv.rows(), width);
    RunCuda(a, num_decodes, qkv, out);
    got_ = std::make_unique<Matrix>(DataType::kF32, qkv.rows(), width);
    for (int64_t r = 0; r < qkv.rows(); ++r) {
      for (int64_t c = 0; c < width; ++c) got_->Set(r, c, out.Get(r, c));
    }
    RunCpu(a, num_decodes, host);
    return {got_.get(), want_.get()};
  }

 private:
  OpsLimits Limits() const {
    return {.max_tokens = 128,
            .max_seqs = 8,
            .max_k = 64,
            .max_n = 64,
            .num_heads = shape_.num_heads,
            .head_dim = shape_.head_dim,
            .block_size = kBlockSize,
            .max_model_len = kPositions,
            .vocab_size = 64};
  }
  int64_t Bytes(const Device& device) const {
    return KvBlockBytes(device, cache_, kBlockSize, shape_.num_kv_heads, shape_.head_dim);
  }
  KvCacheView View(void* data) const {
    const bool f8 = cache_ == DataType::kF8E4M3;
    return {data,
            cache_,
            kBlocks,
            kBlockSize,
            shape_.num_kv_heads,
            shape_.head_dim,
            f8 ? kKScale : 1,
            f8 ? kVScale : 1};
  }
  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }

  void RunCuda(const Arrays& a, int64_t num_decodes, DeviceMatrix& qkv, DeviceMatrix& out) {
    DeviceArray<int32_t> query_start(a.query_start), context_len(a.context_len), tables(a.tables),
        positions(a.positions), slots(a.slots), kv_head_of_head(a.kv_head_of_head);
    DeviceArray<float> cos(cos_host_), sin(sin_host_);
    AttentionBatch batch = BatchOf(a, num_decodes);
    batch.query_start = query_start.data();
    batch.context_len = context_len.data();
    batch.block_tables = tables.data();
    batch.positions = positions.data();
    batch.slot_mapping = slots.data();
    const RopeTable rope = rotates_ ? RopeTable{cos.data(), sin.data()} : RopeTable();
    const KvCacheView cache = View(cuda_memory_.device<void>());
    QkNormRopeAndCache(*cuda_.device, qkv.view(), shape_.num_heads, nullptr, nullptr, 1e-5, rope, batch,
                       cache);
    PagedAttention(*cuda_.device, qkv.view(), shape_.num_heads, kv_head_of_head.data(), {.scale = Scale()},
                   batch, cache, out.view());
    EXPECT_TRUE(cuda_.device->Synchronize().ok());
  }

  void RunCpu(const Arrays& a, int64_t num_decodes, Matrix& qkv) {
    AttentionBatch batch = BatchOf(a, num_decodes);
    batch.query_start = a.query_start.data();
    batch.context_len = a.context_len.data();
    batch.block_tables = a.tables.data();
    batch.positions = a.positions.data();
    batch.slot_mapping = a.slots.data();
    const RopeTable rope = rotates_ ? RopeTable{cos_host_.data(), sin_host_.data()} : RopeTable();
    const KvCacheView cache = View(cpu_memory_.as<void>());
    want_ = std::make_unique<Matrix>(DataType::kF32, qkv.rows(), shape_.num_heads * shape_.head_dim);
    QkNormRopeAndCache(*cpu_.device, qkv.view(), shape_.num_heads, nullptr, nullptr, 1e-5, rope, batch,
                       cache);
    PagedAttention(*cpu_.device, qkv.view(), shape_.num_heads, a.kv_head_of_head.data(), {.scale = Scale()},
                   batch, cache, want_->view());
  }

  const Shape shape_;
  const DataType act_, cache_;
  const bool rotates_;
  kernel_test::Bench cpu_;
  CudaBench cuda_;
  kernel_test::Buffer cpu_memory_;
  DeviceBuffer cuda_memory_;
  std::vector<float> cos_host_, sin_host_;
  std::unique_ptr<Matrix> got_, want_;
};

class ByteCacheTest : public testing::TestWithParam<std::tuple<DataType, DataType>> {};
std::string CacheName(DataType cache) { return cache == DataType::kI8 ? "i8" : "f8"; }
constexpr DataType kByteTypes[] = {DataType::kF8E4M3, DataType::kI8};
std::string ByteCacheName(const testing::TestParamInfo<std::tuple<DataType, DataType>>& info) {
  return std::string(NameOf(std::get<0>(info.param))) + "_" + CacheName(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(Types, ByteCacheTest,
                         testing::Combine(testing::ValuesIn(kActTypes), testing::ValuesIn(kByteTypes)),
                         ByteCacheName);

// The rotated q is kept in f32 on the CPU, in act on CUDA: a score is off by epsilon * |q| |k| * scale, which
// is about epsilon here and three times that at worst; so is the weight, and |V| is at most 3. Then weights
// and the output are rounded to act. With an i8 cache weights are rounded to bf16.
double Tolerance(DataType act, DataType cache, bool rotates, double want) {
  if (act == DataType::kF32) return 2e-5;
  const double weights = cache == DataType::kI8 ? 3 * kernel_test::Epsilon(DataType::kBF16) : 0;
  return kernel_test::Epsilon(act) * ((rotates ? 9 : 3) + 2 * std::fabs(want)) + weights + 2e-5;
}

// Prompts of every tail, then decodes and a chunk in one step.
TEST_P(ByteCacheTest, CudaEqualsTheCpuFromWriteToAnswer) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  const auto [act, cache] = GetParam();
  for (const Shape& shape : {Shape{9, 3, 64}, Shape{4, 1, 128}, Shape{5, 2, 24}}) {
    for (const bool rotates : {false, true}) {
      SCOPED_TRACE(testing::Message() << shape.num_heads << " heads on " << shape.num_kv_heads << ", dim "
                                      << shape.head_dim << ", rotated " << rotates);
      Pair pair(shape, act, cache, rotates);
      const int64_t width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
      struct Cut {
        std::vector<int64_t> done, counts;
        int64_t decodes;
      };
      for (const auto& [done, counts, decodes] :
           {Cut{{0, 0}, {33, 7}, 0}, Cut{{33, 7}, {1, 12}, 1}, Cut{{34, 19}, {1, 1}, 2}}) {
        int64_t tokens = 0;
        for (int64_t count : counts) tokens += count;
        DeviceMatrix qkv(act, tokens, width);
        qkv.Randomize(static_cast<uint32_t>(tokens));
        const auto [got, want] = pair.Step(done, counts, qkv, decodes);
        for (int64_t r = 0; r < tokens; ++r) {
          for (int64_t c = 0; c < want->cols(); ++c) {
            ASSERT_NEAR(got->Get(r, c), want->Get(r, c), Tolerance(act, cache, rotates, want->Get(r, c)))
                << tokens << " tokens, row " << r << ", column " << c;
          }
        }
      }
    }
  }
}

// Attention over a single token returns the token's value as stored in the cache: the same bits on both.
void ExpectTheSameBits(DataType cache, const Shape& shape, int rounds) {
  SCOPED_TRACE(testing::Message() << CacheName(cache) << ", dim " << shape.head_dim);
  Pair pair(shape, DataType::kF32, cache, false);
  std::mt19937 random(3);
  for (int round = 0; round < rounds; ++round) {
    DeviceMatrix qkv(DataType::kF32, 1, 3 * shape.head_dim);
    for (int64_t i = 0; i < shape.head_dim; ++i) {
      qkv.Set(0, i, 0);
      qkv.Set(0, shape.head_dim + i, 0);
      // Values from below the smallest subnormal f8e4m3 to beyond saturation.
      const float magnitude = std::ldexp(1.0f + static_cast<float>(random() % 4096) / 4096.0f,
                                         static_cast<int>(random() % 24) - 13);
      qkv.Set(0, 2 * shape.head_dim + i, random() % 2 ? magnitude : -magnitude);
    }
    const auto [got, want] = pair.Step({0}, {1}, qkv);
    EXPECT_EQ(got->Bytes(0), want->Bytes(0)) << round;
  }
}

TEST(ByteCacheBits, AreTheSame) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  for (const DataType cache : kByteTypes) {
    for (const int64_t head_dim : {128, 30}) ExpectTheSameBits(cache, {1, 1, head_dim}, 8);
  }
}

// The scales of heads without a largest value that counts, as ops.h says.
TEST(ByteCacheBits, Int8ScalesOfHeadsWithoutALargestValue) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  for (const int64_t head_dim : {128, 30}) {
    Pair pair({1, 1, head_dim}, DataType::kF32, DataType::kI8, false);
    for (const float value :
         {0.0f, std::nextafter(kLeastI8Magnitude, 0.0f), -kLeastI8Magnitude, 3e38f, INFINITY, NAN}) {
      DeviceMatrix qkv(DataType::kF32, 1, 3 * head_dim);
      for (int64_t i = 0; i < 3 * head_dim; ++i) qkv.Set(0, i, 0);
      for (int64_t i = 0; i < head_dim; i += 3) qkv.Set(0, 2 * head_dim + i, value);
      const auto [got, want] = pair.Step({0}, {1}, qkv);
      for (int64_t i = 0; i < head_dim; ++i) {
        EXPECT_EQ(std::isnan(got->Get(0, i)), !std::isfinite(value)) << value;
        if (std::isfinite(value)) {
          EXPECT_EQ(got->Get(0, i), want->Get(0, i)) << value;
        }
      }
    }
  }
}

}  // namespace
}  // namespace somnus
