#pragma once
// The common code of tests of attention: sequences, one layer of cache and the steps over that layer, and the
// reference in double.

#include <memory>
#include <string>
#include <vector>

#include "tests/kernels/kernel_test_util.h"

namespace somnus::kernel_test {

struct Shape {
  int64_t num_heads, num_kv_heads, head_dim, block_size;
};

// A sequence's whole qkv, given in advance; the tests feed the rows in any cut.
struct Sequence {
  Sequence(const Shape& shape, int64_t length, uint32_t seed)
      : qkv(DataType::kF32, length, (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim) {
    qkv.Randomize(seed);
  }
  Matrix qkv;
  std::vector<int32_t> blocks;
  int64_t done = 0;
};

// The scales of a cache in these tests: no powers of two.
inline constexpr float kKScale = 0.3f, kVScale = 0.07f;

// The types of a cache and of the activations: AMX and VBMI compute bytes differently where activations are
// bf16.
struct CacheTypes {
  DataType cache, out;
};
inline constexpr CacheTypes kCacheTypes[] = {
    {DataType::kF32, DataType::kF32},     {DataType::kBF16, DataType::kBF16},
    {DataType::kF16, DataType::kF16},     {DataType::kF8E4M3, DataType::kF32},
    {DataType::kF8E4M3, DataType::kBF16}, {DataType::kI8, DataType::kF32},
    {DataType::kI8, DataType::kBF16}};

// The types that run separate code on the instruction set, for the cases that take long. Where no kernel asks
// for the activations of a cache of bytes, bf16 is only how the output is rounded, as with a cache of bf16.
inline std::vector<CacheTypes> CacheTypesOf(CpuIsa isa) {
  std::vector<CacheTypes> all(std::begin(kCacheTypes), std::end(kCacheTypes));
  if (isa == CpuIsa::kAvx512Bf16 || isa == CpuIsa::kAmx) return all;
  std::erase_if(all, [](const CacheTypes& types) {
    return types.out == DataType::kBF16 && types.cache != DataType::kBF16;
  });
  return all;
}

// The [head_dim] values of a token's K or V of one head as read back from the cache.
inline std::vector<double> Cached(DataType type, std::vector<float> head, bool v) {
  std::vector<double> values;
  if (type == DataType::kI8) {
    float largest = 0;
    for (const float x : head) largest = std::max(largest, std::fabs(x));
    const float scale = largest / 127, inverse = 127 / largest;
    for (const float x : head) values.push_back(double{scale} * std::nearbyintf(x * inverse));
    return values;
  }
  const float scale = type != DataType::kF8E4M3 ? 1.0f : v ? kVScale : kKScale;
  for (const float x : head) values.push_back(Round(type, x * (1.0f / scale)) * scale);
  return values;
}

// One layer of cache and the steps over that layer.
class Runner {
 public:
  // max_model_len: the longest context that threads may share.
  Runner(CpuIsa isa, int num_threads, const Shape& shape, CacheTypes types, int64_t num_blocks,
         int64_t max_model_len = 0)
      : shape_(shape),
        type_(types.cache),
        out_type_(types.out),
        rule_{.scale = Scale()},
        bench_(isa, num_threads,
               {.num_heads = shape.num_heads,
                .head_dim = shape.head_dim,
                .block_size = shape.block_size,
                .max_model_len = max_model_len}),
        bytes_(KvBlockBytes(*bench_.device, type_, shape.block_size, shape.num_kv_heads, shape.head_dim)),
        cache_(num_blocks * bytes_) {
    // Unwritten memory is NaN, which must never be seen.
    std::memset(cache_.as<char>(), 0xff, cache_.bytes());
    view_ = {cache_.as<void>(), type_, num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim};
    if (type_ == DataType::kF8E4M3) {
      view_.k_scale = kKScale;
      view_.v_scale = kVScale;
    }
    for (int64_t h = 0; h < shape.num_heads; ++h) {
      kv_head_of_head_.push_back(static_cast<int32_t>(h * shape.num_kv_heads / shape.num_heads));
    }
    for (int64_t b = num_blocks - 1; b > 0; --b) free_.push_back(static_cast<int32_t>(b));
  }

  // A window and a soft cap. With a window, Step takes the blocks before the window away: their place in the
  // table becomes the null block, their bytes become NaN, and other sequences may get these blocks.
  void SetRule(int32_t window, float logit_softcap) {
    rule_.window = window;
    rule_.logit_softcap = logit_softcap;
  }

  // A sink's logit for each head.
  void SetSinks(const std::vector<float>& sinks) {
    sinks_ = sinks;
    rule_.sinks = sinks_.data();
  }

  void ShuffleBlocks(uint32_t seed) { std::shuffle(free_.begin(), free_.end(), std::mt19937(seed)); }
  std::vector<int32_t>& kv_head_of_head() { return kv_head_of_head_; }
  Device& device() { return *bench_.device; }
  const KvCacheView& view() const { return view_; }

  // Runs the next counts[i] tokens of sequence i in one step; the outputs, row after row.
  std::vector<std::string> Step(const std::vector<Sequence*>& sequences, const std::vector<int64_t>& counts) {
    std::vector<int32_t> starts = {0}, contexts, positions, slots;
    size_t widest = 1;
    for (size_t i = 0; i < sequences.size(); ++i) {
      Sequence& s = *sequences[i];
      for (int64_t p = s.done; p < s.done + counts[i]; ++p) {
        if (p / shape_.block_size >= static_cast<int64_t>(s.blocks.size())) {
          s.blocks.push_back(free_.back());
          free_.pop_back();
        }
        positions.push_back(static_cast<int32_t>(p));
        slots.push_back(static_cast<int32_t>(s.blocks[p / shape_.block_size] * shape_.block_size +
                                             p % shape_.block_size));
      }
      starts.push_back(starts.back() + static_cast<int32_t>(counts[i]));
      contexts.push_back(static_cast<int32_t>(s.done + counts[i]));
      widest = std::max(widest, s.blocks.size());
    }
    std::vector<int32_t> tables(sequences.size() * widest, 0);
    const int64_t num_tokens = starts.back();
    Matrix qkv(DataType::kF32, num_tokens, sequences[0]->qkv.cols(), 3);
    for (size_t i = 0; i < sequences.size(); ++i) {
      Sequence& s = *sequences[i];
      std::copy(s.blocks.begin(), s.blocks.end(), tables.begin() + i * widest);
      for (int64_t t = 0; t < counts[i]; ++t) {
        for (int64_t c = 0; c < qkv.cols(); ++c) qkv.Set(starts[i] + t, c, s.qkv.Get(s.done + t, c));
      }
      s.done += counts[i];
    }
    const AttentionBatch batch{.num_seqs = static_cast<int64_t>(sequences.size()),
                               .num_tokens = num_tokens,
                               .query_start = starts.data(),
                               .context_len = contexts.data(),
                               .block_tables = tables.data(),
                               .max_blocks_per_seq = static_cast<int64_t>(widest),
                               .positions = positions.data(),
                               .slot_mapping = slots.data()};
    QkNormRopeAndCache(*bench_.device, qkv.view(), shape_.num_heads, nullptr, nullptr, 1e-6, {}, batch,
                       view_);
    out_ = std::make_unique<Matrix>(out_type_, num_tokens, shape_.num_heads * shape_.head_dim, 1);
    PagedAttention(*bench_.device, qkv.view(), shape_.num_heads, kv_head_of_head_.data(), rule_, batch, view_,
                   out_->view());
    std::vector<std::string> rows;
    for (int64_t t = 0; t < num_tokens; ++t) rows.push_back(out_->Bytes(t));
    for (Sequence* s : sequences) FreeBlocksBefore(*s, s->done + 1 - rule_.window);
    return rows;
  }

  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }
  Matrix& out() { return *out_; }

 private:
  void FreeBlocksBefore(Sequence& s, int64_t token) {
    if (rule_.window == 0) return;
    for (int64_t b = 0; (b + 1) * shape_.block_size <= token; ++b) {
      if (s.blocks[b] == 0) continue;
      std::memset(cache_.as<char>() + s.blocks[b] * bytes_, 0xff, bytes_);
      free_.insert(free_.begin(), s.blocks[b]);
      s.blocks[b] = 0;
    }
  }

  Shape shape_;
  DataType type_;
  DataType out_type_;
  AttentionRule rule_;
  Bench bench_;
  int64_t bytes_;
  Buffer cache_;
  KvCacheView view_;
  std::vector<int32_t> kv_head_of_head_, free_;
  std::vector<float> sinks_;
  std::unique_ptr<Matrix> out_;
};

// Attention of the query at `position` for head h, in double, with K, V and (bf16) q rounded as in the cache.
inline std::vector<double> Reference(Sequence& s, const Shape& shape, DataType type, int64_t kv_head,
                                     int64_t h, int64_t position, float scale,
                                     const AttentionRule& rule = {}) {
  const int64_t d = shape.head_dim, k = (shape.num_heads + kv_head) * d, v = k + shape.num_kv_heads * d;
  std::vector<double> scores, out(d, 0.0);
  const auto cached = [&](int64_t p, int64_t column) {
    std::vector<float> head;
    for (int64_t i = 0; i < d; ++i) head.push_back(s.qkv.Get(p, column + i));
    return Cached(type, head, column == v);
  };
  const int64_t first = rule.window > 0 ? std::max<int64_t>(0, position - rule.window + 1) : 0;
  for (int64_t p = first; p <= position; ++p) {
    const std::vector<double> key = cached(p, k);
    double score = 0;
    for (int64_t i = 0; i < d; ++i) score += s.qkv.Get(position, h * d + i) * key[i];
    const double cap = rule.logit_softcap;
    scores.push_back(cap > 0 ? cap * std::tanh(score * scale / cap) : score * scale);
  }
  if (rule.sinks != nullptr) scores.push_back(rule.sinks[h]);
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - max);
  for (int64_t p = first; p <= position; ++p) {
    const std::vector<double> value = cached(p, v);
    for (int64_t i = 0; i < d; ++i) out[i] += scores[p - first] / sum * value[i];
  }
  return out;
}

// bf16 rounds q (error of a score: epsilon * |q||k| * scale, here about 3 epsilon) and weights, then the
// output.
inline double Tolerance(DataType out, double value) {
  return out == DataType::kF32 ? 2e-5 : 6 * Epsilon(out) + 2 * Epsilon(out) * std::fabs(value);
}

}  // namespace somnus::kernel_test
