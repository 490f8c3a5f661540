// Latent attention: rows of the cache that are keys and values at once, against softmax in double, and bit
// for bit the same however a prompt is cut, on any blocks and number of threads.

#include <numeric>

#include "tests/kernels/kernel_test_util.h"

namespace somnus {
namespace {

using namespace kernel_test;

struct Shape {
  int64_t num_heads;
  LatentShape sizes;
  int64_t block_size;

  int64_t width() const { return sizes.latent + sizes.rope; }
  int64_t head() const { return sizes.nope + sizes.rope; }
};

// One vector and less, odd lengths, more rows than attention takes at once, blocks larger than a chunk.
constexpr Shape kShapes[] = {{3, {.nope = 5, .rope = 6, .latent = 10}, 4},
                             {16, {.nope = 16, .rope = 8, .latent = 40, .interleaved = false}, 16},
                             {70, {.nope = 8, .rope = 16, .latent = 33}, 16},
                             {4, {.nope = 4, .rope = 2, .latent = 64}, 100}};
constexpr DataType kTypes[] = {DataType::kF32, DataType::kBF16, DataType::kF16};
constexpr int64_t kTokens = 150;
constexpr double kEps = 1e-6, kScale = 0.3;

// One sequence: all inputs of a layer's ops, and the tables.
class Layer {
 public:
  explicit Layer(const Shape& shape)
      : shape_(shape),
        rows_(DataType::kF32, kTokens, shape.width()),
        queries_(DataType::kF32, kTokens, shape.num_heads * shape.head()),
        lifted_(DataType::kF32, kTokens, shape.num_heads * shape.width()),
        norm_(RandomFloats(shape.sizes.latent, 4)),
        angles_(RandomFloats(kTokens * shape.sizes.rope / 2, 5, 3)) {
    rows_.Randomize(1);
    queries_.Randomize(2);
    lifted_.Randomize(3);
    for (const float angle : angles_) {
      cos_.push_back(std::cos(angle));
      sin_.push_back(std::sin(angle));
    }
  }

  // The rotated last dimensions of x: what rotates together, by position.
  std::vector<double> Rotated(const float* x, int64_t position) const {
    const int64_t half = shape_.sizes.rope / 2;
    std::vector<double> out(shape_.sizes.rope);
    for (int64_t i = 0; i < half; ++i) {
      const int64_t a = shape_.sizes.interleaved ? 2 * i : i;
      const int64_t b = shape_.sizes.interleaved ? 2 * i + 1 : i + half;
      const double cos = cos_[position * half + i], sin = sin_[position * half + i];
      out[a] = x[a] * cos - x[b] * sin;
      out[b] = x[b] * cos + x[a] * sin;
    }
    return out;
  }
  std::vector<double> CachedRow(int64_t position, DataType type) {
    const float* x = rows_.row(position);
    double squares = 0;
    for (int64_t d = 0; d < shape_.sizes.latent; ++d) squares += double{x[d]} * x[d];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(shape_.sizes.latent) + kEps);
    std::vector<double> row;
    for (int64_t d = 0; d < shape_.sizes.latent; ++d) row.push_back(x[d] * scale * norm_[d]);
    for (const double value : Rotated(x + shape_.sizes.latent, position)) row.push_back(value);
    for (double& value : row) value = Round(type, static_cast<float>(value));
    return row;
  }
  std::vector<double> Want(int64_t position, int64_t head, DataType type) {
    std::vector<double> query;
    const float* lifted = lifted_.row(position) + head * shape_.width();
    query.assign(lifted, lifted + shape_.sizes.latent);
    const float* x = queries_.row(position) + head * shape_.head() + shape_.sizes.nope;
    for (const double value : Rotated(x, position)) query.push_back(value);
    std::vector<std::vector<double>> rows;
    std::vector<double> weights, out(shape_.width(), 0.0);
    for (int64_t p = 0; p <= position; ++p) {
      rows.push_back(CachedRow(p, type));
      weights.push_back(kScale * std::inner_product(query.begin(), query.end(), rows.back().begin(), 0.0));
    }
    const double top = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - top);
    for (int64_t p = 0; p <= position; ++p) {
      for (int64_t d = 0; d < shape_.width(); ++d) out[d] += weights[p] / sum * rows[p][d];
    }
    return out;
  }

  // The outputs of all tokens, row after row, computed in chunks of the given sizes in turn.
  std::vector<std::string> Run(CpuIsa isa, int num_threads, DataType type, const std::vector<int64_t>& chunks,
                               uint32_t seed, Matrix* out) {
    Bench bench(isa, num_threads,
                {.num_heads = shape_.num_heads,
                 .head_dim = shape_.width(),
                 .block_size = shape_.block_size,
                 .max_model_len = kTokens});
    const int64_t num_blocks = kTokens / shape_.block_size + 3;
    Buffer memory(num_blocks *
                  KvBlockBytes(*bench.device, type, shape_.block_size, 1, shape_.width(), /*latent=*/true));
    std::memset(memory.as<char>(), 0xff, memory.bytes());  // NaN
    KvCacheView cache{memory.as<void>(), type, num_blocks, shape_.block_size, 1, shape_.width()};
    cache.latent = true;
    std::vector<int32_t> table(num_blocks - 1), kv_heads(shape_.num_heads, 0);
    std::iota(table.begin(), table.end(), 1);
    std::shuffle(table.begin(), table.end(), std::mt19937(seed));
    std::vector<std::string> bytes;
    size_t next = 0;
    for (int64_t begin = 0; begin < kTokens; ++next) {
      const int64_t count = std::min(kTokens - begin, chunks[next % chunks.size()]);
      Step(*bench.device, cache, table, kv_heads, begin, count, out);
      begin += count;
    }
    for (int64_t t = 0; t < kTokens; ++t) bytes.push_back(out->Bytes(t));
    return bytes;
  }

 private:
  void Step(Device& device, const KvCacheView& cache, const std::vector<int32_t>& table,
            const std::vector<int32_t>& kv_heads, int64_t begin, int64_t count, Matrix* out) {
    std::vector<int32_t> positions, slots;
    for (int64_t p = begin; p < begin + count; ++p) {
      positions.push_back(static_cast<int32_t>(p));
      slots.push_back(
          static_cast<int32_t>(table[p / shape_.block_size] * shape_.block_size + p % shape_.block_size));
    }
    const int32_t starts[] = {0, static_cast<int32_t>(count)}, context = static_cast<int32_t>(begin + count);
    const AttentionBatch batch{.num_seqs = 1,
                               .num_tokens = count,
                               .query_start = starts,
                               .context_len = &context,
                               .block_tables = table.data(),
                               .max_blocks_per_seq = static_cast<int64_t>(table.size()),
                               .positions = positions.data(),
                               .slot_mapping = slots.data()};
    Matrix rows(DataType::kF32, count, shape_.width(), 3), lifted(DataType::kF32, count, lifted_.cols(), 5);
    for (int64_t t = 0; t < count; ++t) {
      std::copy_n(rows_.row(begin + t), rows.cols(), rows.row(t));
      std::copy_n(lifted_.row(begin + t), lifted.cols(), lifted.row(t));
      // The op writes the columns of the rotated dimensions.
      for (int64_t h = 0; h < shape_.num_heads; ++h)
        std::fill_n(lifted.row(t) + h * shape_.width() + shape_.sizes.latent, shape_.sizes.rope, NAN);
    }
    LatentRopeAndCache(device, rows.view(), norm_.data(), kEps, queries_.view(begin, count), shape_.num_heads,
                       shape_.sizes, {cos_.data(), sin_.data()}, batch, cache, lifted.view());
    PagedAttention(device, lifted.view(), shape_.num_heads, kv_heads.data(), {.scale = kScale}, batch, cache,
                   out->view(begin, count));
  }

  const Shape shape_;
  Matrix rows_, queries_, lifted_;
  std::vector<float> norm_, angles_, cos_, sin_;
};

class LatentAttentionTest : public testing::TestWithParam<CpuIsa> {};
INSTANTIATE_TEST_SUITE_P(Isas, LatentAttentionTest, testing::ValuesIn(IsasWithOwnKernels()), IsaName);

TEST_P(LatentAttentionTest, EqualsSoftmaxInDoubleAndDoesNotDependOnTheCut) {
  for (const Shape& shape : kShapes) {
    for (const DataType type : kTypes) {
      SCOPED_TRACE(testing::Message() << shape.num_heads << " heads, latent " << shape.sizes.latent
                                      << ", type " << static_cast<int>(type));
      Layer layer(shape);
      Matrix out(type, kTokens, shape.num_heads * shape.width());
      const std::vector<std::string> one_by_one = layer.Run(GetParam(), 1, type, {1}, 1, &out);
      for (const int64_t position : {int64_t{0}, int64_t{17}, kTokens - 1}) {
        for (int64_t h = 0; h < shape.num_heads; h += 3) {
          const std::vector<double> want = layer.Want(position, h, type);
          for (int64_t d = 0; d < shape.width(); ++d) {
            ASSERT_NEAR(out.Get(position, h * shape.width() + d), want[d],
                        2e-5 + 2 * Epsilon(type) * (1 + std::fabs(want[d])))
                << "position " << position << ", head " << h << ", dim " << d;
          }
        }
      }
      EXPECT_EQ(layer.Run(GetParam(), 3, type, {kTokens}, 2, &out), one_by_one);
      EXPECT_EQ(layer.Run(GetParam(), 2, type, {1, 40, 7}, 3, &out), one_by_one);
    }
  }
}

TEST(LatentCacheTest, ABlockHasOneRowForAToken) {
  const std::unique_ptr<Device> device = MakeDevice(CpuIsa::kPortable, 1);
  EXPECT_EQ(KvBlockBytes(*device, DataType::kBF16, 16, 1, 576, /*latent=*/true), 16 * 576 * 2);
  EXPECT_EQ(KvBlockBytes(*device, DataType::kBF16, 16, 1, 576), 2 * 16 * 576 * 2);
}

}  // namespace
}  // namespace somnus
