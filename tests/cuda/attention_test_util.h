#pragma once
// The common code of attention's tests: a step over a paged cache in the device's memory, filled by the test
// (blocks anywhere, NaN wherever no token is), and the CPU's op on the same numbers in f32 as the oracle.

#include <limits>
#include <numeric>

#include "tests/cuda/attention_case.h"
#include "tests/cuda/attention_oracle.h"
#include "tests/cuda/rows_test_util.h"

namespace somnus::cuda_test {

using kernel_test::F8ToDouble;

class AttentionRun {
 public:
  static constexpr float kKScale = 0.75f, kVScale = 0.5f;

  explicit AttentionRun(const AttentionCase& c)
      : c_(c),
        random_(c.seed),
        width_((c.num_heads + 2 * c.num_kv_heads) * c.head_dim),
        qkv_(c.act, c.num_tokens(), width_, c.layout),
        out_(c.act, c.num_tokens(), c.num_heads * c.head_dim, c.layout) {
    if (c_.kv_head_of_head.empty()) {
      for (int64_t h = 0; h < c.num_heads; ++h) {
        c_.kv_head_of_head.push_back(static_cast<int32_t>(h * c.num_kv_heads / c.num_heads));
      }
    }
    kv_map_ = std::make_unique<DeviceArray<int32_t>>(c_.kv_head_of_head);
    if (!c_.sinks.empty()) sinks_ = std::make_unique<DeviceArray<float>>(c_.sinks);
    PlaceBlocks();
    FillQueries();
    FillCache();
  }

  const AttentionCase& spec() const { return c_; }

  // The number of sequences, tokens, and the bounds stay; contexts may change, as between two replays of a
  // graph.
  AttentionBatch Batch() {
    AttentionBatch batch;
    batch.num_seqs = static_cast<int64_t>(c_.sequences.size());
    batch.num_tokens = c_.num_tokens();
    batch.num_decodes = c_.num_decodes;
    for (const SequenceSpec& s : c_.sequences) {
      batch.max_query_len = std::max(batch.max_query_len, s.queries);
      batch.max_context_len = std::max(batch.max_context_len, s.context);
    }
    if (c_.max_context_len > 0) batch.max_context_len = c_.max_context_len;
    batch.query_start = query_start_->data();
    batch.context_len = context_len_->data();
    batch.block_tables = tables_->data();
    batch.max_blocks_per_seq = blocks_per_seq_;
    batch.positions = positions_->data();
    return batch;
  }

  // Queues the op.
  void Queue(Device& device) {
    PagedAttention(device, qkv_.view(), c_.num_heads, kv_map_->data(),
                   {.scale = Scale(),
                    .window = c_.window,
                    .logit_softcap = c_.logit_softcap,
                    .sinks = sinks_ == nullptr ? nullptr : sinks_->data()},
                   Batch(), CacheView(), out_.view());
  }

  void Check() {
    std::vector<std::vector<double>> want = Oracle();
    int64_t row = 0;
    for (const SequenceSpec& s : c_.sequences) {
      for (int64_t q = 0; q < s.queries; ++q, ++row) CheckRow(row, s.context == 0, want[row]);
    }
  }

  // Makes the first sequence's cached tokens equal to the tokens of `from`, whose first context is as long.
  void CopyFirstContext(const AttentionRun& from) {
    const auto copy = [&](int64_t from_at, int64_t at, int64_t bytes) {
      std::copy_n(from.contents_.begin() + from_at, bytes, contents_.begin() + at);
    };
    for (int64_t p = 0; p < c_.sequences[0].context; ++p) {
      for (int64_t g = 0; g < c_.num_kv_heads; ++g) {
        for (const bool v : {false, true}) {
          const int64_t in_block = p % c_.block_size;
          const int64_t other = from.blocks_[0][p / c_.block_size], own = blocks_[0][p / c_.block_size];
          copy(SizeOf(c_.cache) * CacheIndex(other, g, v, in_block, 0),
               SizeOf(c_.cache) * CacheIndex(own, g, v, in_block, 0), c_.head_dim * SizeOf(c_.cache));
          if (i8()) copy(ScaleByte(other, g, v, in_block), ScaleByte(own, g, v, in_block), 4);
        }
      }
    }
    kv_[0] = from.kv_[0];
    UploadCache();
  }

  // For a cache of 16 bits: moves the values of every other `tokens` tokens far up, the values between far
  // down. With even weights the sums of values all but cancel, so that the order of summation shows in the
  // output. For runs that are compared with each other; the oracle's values are not changed.
  void SwingValues(int64_t tokens) {
    for (size_t i = 0; i < c_.sequences.size(); ++i) {
      for (int64_t p = 0; p < c_.sequences[i].context; ++p) {
        if (blocks_[i][p / c_.block_size] == 0) continue;
        for (int64_t at = 0; at < c_.num_kv_heads * c_.head_dim; ++at) {
          const int64_t index = CacheIndex(blocks_[i][p / c_.block_size], at / c_.head_dim, true,
                                           p % c_.block_size, at % c_.head_dim);
          const float x = kv_[i][(p * c_.num_kv_heads + at / c_.head_dim) * 2 * c_.head_dim + c_.head_dim +
                                 at % c_.head_dim] +
                          (p / tokens % 2 == 0 ? 64.0f : -64.0f);
          Put16(index, x);
        }
      }
    }
    UploadCache();
  }

  DeviceMatrix& out() { return out_; }
  DeviceMatrix& qkv() { return qkv_; }
  void SetContextLength(size_t sequence, int32_t length) {
    context_len_->Set(static_cast<int64_t>(sequence), length);
  }
  std::vector<SequenceSpec>& sequences() { return c_.sequences; }

 private:
  float Scale() const {
    const double k_spread = c_.cache == DataType::kF8E4M3 ? kKScale : 1.0;
    return static_cast<float>(c_.q_spread / std::sqrt(static_cast<double>(c_.head_dim)) / k_spread);
  }
  bool f8() const { return c_.cache == DataType::kF8E4M3; }
  bool i8() const { return c_.cache == DataType::kI8; }

  KvCacheView CacheView() {
    return {cache_->device<void>(), c_.cache,    num_blocks_,        c_.block_size,
            c_.num_kv_heads,        c_.head_dim, f8() ? kKScale : 1, f8() ? kVScale : 1};
  }

  // Shuffled blocks from 1 on, some never used; entries behind a sequence's blocks name no block, and entries
  // before the window the null block, which holds NaN.
  void PlaceBlocks() {
    int64_t used = 0;
    blocks_per_seq_ = 1;
    for (const SequenceSpec& s : c_.sequences) {
      const int64_t blocks = (s.context + c_.block_size - 1) / c_.block_size;
      used += blocks;
      blocks_per_seq_ = std::max(blocks_per_seq_, blocks + 1);
    }
    num_blocks_ = used + 4;
    std::vector<int32_t> free(num_blocks_ - 1);
    std::iota(free.begin(), free.end(), 1);
    std::shuffle(free.begin(), free.end(), random_);
    std::vector<int32_t> tables(c_.sequences.size() * blocks_per_seq_, std::numeric_limits<int32_t>::max());
    std::vector<int32_t> starts = {0}, contexts, positions;
    for (size_t i = 0; i < c_.sequences.size(); ++i) {
      const SequenceSpec& s = c_.sequences[i];
      for (int64_t b = 0; b * c_.block_size < s.context; ++b) {
        if ((b + 1) * c_.block_size <= c_.FirstSeen(i)) {
          tables[i * blocks_per_seq_ + b] = 0;
          continue;
        }
        tables[i * blocks_per_seq_ + b] = free.back();
        free.pop_back();
      }
      blocks_.emplace_back(tables.begin() + i * blocks_per_seq_, tables.begin() + (i + 1) * blocks_per_seq_);
      starts.push_back(starts.back() + static_cast<int32_t>(s.queries));
      contexts.push_back(static_cast<int32_t>(s.context));
      for (int64_t q = 0; q < s.queries; ++q) {
        positions.push_back(static_cast<int32_t>(s.context == 0 ? 0 : s.context - s.queries + q));
      }
    }
    tables_ = std::make_unique<DeviceArray<int32_t>>(tables);
    query_start_ = std::make_unique<DeviceArray<int32_t>>(starts);
    context_len_ = std::make_unique<DeviceArray<int32_t>>(contexts);
    positions_ = std::make_unique<DeviceArray<int32_t>>(positions);
  }

  // Attention does not read K and V of qkv, so K and V stay unchanged.
  void FillQueries() {
    qkv_.Randomize(c_.seed + 100);
    for (int64_t t = 0; t < qkv_.rows(); ++t) {
      std::vector<float> row = qkv_.GetRow(t);
      std::fill(row.begin() + c_.num_heads * c_.head_dim, row.end(), NAN);
      qkv_.SetRow(t, row);
    }
  }

  int64_t CacheIndex(int64_t block, int64_t kv_head, bool v, int64_t in_block, int64_t d) const {
    const int64_t run = (block * c_.num_kv_heads + kv_head) * 2 + v;
    return run * RunElements() + RunHeader() + in_block * c_.head_dim + d;
  }
  // In elements. For i8: the tokens' scales, then the tokens' values, each padded to 16 bytes.
  int64_t RunHeader() const { return i8() ? (c_.block_size + 3) / 4 * 16 : 0; }
  int64_t RunElements() const {
    const int64_t values = c_.block_size * c_.head_dim;
    return RunHeader() + (i8() ? (values + 15) / 16 * 16 : values);
  }
  int64_t ScaleByte(int64_t block, int64_t kv_head, bool v, int64_t in_block) const {
    return ((block * c_.num_kv_heads + kv_head) * 2 + v) * RunElements() + in_block * 4;
  }

  // The scale of a token and head of i8: far from the previous scale.
  void DrawScale(int64_t byte, bool v) {
    drawn_scale_ = std::ldexp(1.0f + static_cast<float>(random_() % 1000) / 1000.0f,
                              (v ? -8 : -6) - static_cast<int>(random_() % (v ? 20 : 3)));
    std::memcpy(&contents_[byte], &drawn_scale_, 4);
  }

  // |V| is at most 1.
  float Draw(bool v) {
    if (i8()) {
      const int8_t bits = static_cast<int8_t>(random_() % 255 - 127);
      drawn_bits_ = static_cast<uint8_t>(bits);
      return static_cast<float>(bits) * drawn_scale_;
    }
    if (f8()) {
      const double scale = v ? kVScale : kKScale;
      while (true) {
        const uint8_t bits = static_cast<uint8_t>(random_());
        drawn_bits_ = bits;
        if (std::fabs(F8ToDouble(bits)) <= 2) return static_cast<float>(F8ToDouble(bits) * scale);
      }
    }
    const float x = v ? std::uniform_real_distribution<float>(-1, 1)(random_)
                      : std::normal_distribution<float>(0, 1)(random_);
    return kernel_test::Round(c_.act, x);
  }

  void FillCache() {
    const int64_t elements = num_blocks_ * 2 * c_.num_kv_heads * RunElements();
    cache_ = std::make_unique<DeviceBuffer>(elements * SizeOf(c_.cache));
    // NaN in every type; of i8 the scales are.
    contents_.assign(static_cast<size_t>(cache_->bytes()), '\xff');
    for (size_t i = 0; i < c_.sequences.size(); ++i) {
      kv_.emplace_back();
      for (int64_t p = 0; p < c_.sequences[i].context; ++p) {
        for (int64_t g = 0; g < c_.num_kv_heads; ++g) PutToken(i, p, g);
      }
    }
    UploadCache();
  }

  // The null block stays NaN, also where tokens before a window were written to that block.
  void UploadCache() {
    std::fill_n(contents_.begin(), 2 * c_.num_kv_heads * RunElements() * SizeOf(c_.cache), '\xff');
    cache_->Write(0, contents_.data(), cache_->bytes());
  }
  // Writes an element of a cache of 16 bits.
  void Put16(int64_t index, float x) {
    const uint16_t bits = c_.act == DataType::kBF16 ? kernel_test::Bf16Of(x) : kernel_test::F16Of(x);
    std::memcpy(&contents_[index * 2], &bits, 2);
  }

  void PutToken(size_t sequence, int64_t position, int64_t kv_head) {
    const int64_t block = blocks_[sequence][position / c_.block_size];
    for (const bool v : {false, true}) {
      if (i8()) DrawScale(ScaleByte(block, kv_head, v, position % c_.block_size), v);
      for (int64_t d = 0; d < c_.head_dim; ++d) {
        const float x = Draw(v);
        kv_[sequence].push_back(x);
        const int64_t at = CacheIndex(block, kv_head, v, position % c_.block_size, d);
        if (f8() || i8()) {
          contents_[at] = static_cast<char>(drawn_bits_);
        } else if (c_.act == DataType::kF32) {
          std::memcpy(&contents_[at * 4], &x, 4);
        } else {
          Put16(at, x);
        }
      }
    }
  }

  // The CPU's op in f32, a sequence at a time.
  std::vector<std::vector<double>> Oracle() {
    std::vector<std::vector<double>> rows;
    int64_t first = 0;
    for (size_t i = 0; i < c_.sequences.size(); first += c_.sequences[i].queries, ++i) {
      if (c_.sequences[i].context == 0) {
        rows.emplace_back();
      } else {
        AppendOracle(c_, i, Scale(), kv_[i], qkv_, first, &rows);
      }
    }
    return rows;
  }

  // |V| <= 1, so rounding the weights to 16 bits (with a cache of i8 bf16) moves a mean of V by epsilon at
  // most, and the output is rounded once more. The rest: f32 sums in another order.
  double Tolerance(double want) const {
    if (c_.act == DataType::kF32) return 1e-5;
    return kernel_test::Epsilon(i8() ? DataType::kBF16 : c_.act) +
           kernel_test::Epsilon(c_.act) * std::fabs(want) + 1e-5;
  }

  void CheckRow(int64_t row, bool padding, const std::vector<double>& want) {
    const std::vector<float> out = out_.GetRow(row);
    for (int64_t col = 0; col < c_.num_heads * c_.head_dim; ++col) {
      const double got = out[col];
      if (padding) {
        ASSERT_EQ(got, 0) << "padding row " << row << ", column " << col;
      } else {
        ASSERT_NEAR(got, want[col], Tolerance(want[col]))
            << "row " << row << ", head " << col / c_.head_dim << ", dim " << col % c_.head_dim;
      }
    }
  }

  AttentionCase c_;
  std::mt19937 random_;
  int64_t width_;
  DeviceMatrix qkv_, out_;
  int64_t num_blocks_ = 0, blocks_per_seq_ = 0;
  std::vector<std::vector<int32_t>> blocks_;  // of each sequence
  std::vector<std::vector<float>> kv_;        // of each sequence: [context][num_kv_heads][K, V][head_dim]
  uint8_t drawn_bits_ = 0;                    // of f8e4m3 or i8
  float drawn_scale_ = 1;                     // of i8
  std::string contents_;                      // of cache_
  std::unique_ptr<DeviceBuffer> cache_;
  std::unique_ptr<DeviceArray<int32_t>> tables_, query_start_, context_len_, positions_, kv_map_;
  std::unique_ptr<DeviceArray<float>> sinks_;
};

// A device with scratch for any attention case.
struct AttentionBench : CudaBench {
  explicit AttentionBench(uint64_t seed = 1, int num_sms = 132)
      : CudaBench({.max_tokens = 64,
                   .max_seqs = 64,
                   .max_k = 64,
                   .max_n = 64,
                   .num_heads = 64,
                   .head_dim = 256,
                   .block_size = 16,
                   .max_model_len = 16384,
                   .vocab_size = 64},
                  seed, num_sms) {}
};

// Runs one case and compares the result with the oracle.
inline void RunCase(AttentionBench& bench, const AttentionCase& c) {
  SCOPED_TRACE(testing::Message() << c);
  AttentionRun run(c);
  run.Queue(*bench.device);
  ASSERT_TRUE(bench.device->Synchronize().ok());
  run.Check();
}

// The base of tests over kMmaTypes.
class AttentionTypesTest : public testing::TestWithParam<Types> {
 protected:
  void SetUp() override { SOMNUS_SKIP_WITHOUT_GPU(bench_.device); }

  AttentionCase Case(const HeadShape& shape, const std::vector<SequenceSpec>& sequences,
                     int64_t num_decodes = 0) const {
    return {.act = GetParam().act,
            .cache = GetParam().cache,
            .num_heads = shape.num_heads,
            .num_kv_heads = shape.num_kv_heads,
            .head_dim = shape.head_dim,
            .block_size = shape.block_size,
            .sequences = sequences,
            .num_decodes = num_decodes};
  }

  AttentionBench bench_;
};

}  // namespace somnus::cuda_test
