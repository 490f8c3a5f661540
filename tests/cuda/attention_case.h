#pragma once
// The input of a test of attention: sequences, heads, types and layout.

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "tests/cuda/rows_test_util.h"

namespace somnus::cuda_test {

struct SequenceSpec {
  int64_t context;      // 0: padding
  int64_t queries = 1;  // the sequence's last tokens
};

struct AttentionCase {
  DataType act = DataType::kBF16;
  DataType cache = DataType::kBF16;
  int64_t num_heads = 1, num_kv_heads = 1, head_dim = 64, block_size = 16;
  std::vector<SequenceSpec> sequences;
  int64_t num_decodes = 0;
  std::vector<int32_t> kv_head_of_head;  // empty: spread evenly
  Layout layout{8, 8};                   // of qkv and out
  double q_spread = 2;                   // scores' standard deviation is about this
  uint32_t seed = 1;
  int64_t max_context_len = 0;  // 0: the longest
  int32_t window = 0;           // AttentionRule's
  float logit_softcap = 0;
  std::vector<float> sinks;  // AttentionRule's; empty: none
  // Tokens from here on, of sequence `i`, are seen by a query; blocks before are not there.
  int64_t FirstSeen(size_t i) const {
    const SequenceSpec& s = sequences[i];
    return window == 0 ? 0 : std::max<int64_t>(0, s.context - s.queries + 1 - window);
  }
  int64_t num_tokens() const {
    int64_t sum = 0;
    for (const SequenceSpec& s : sequences) sum += s.queries;
    return sum;
  }
};

inline std::ostream& operator<<(std::ostream& out, const AttentionCase& c) {
  out << (c.cache == DataType::kF8E4M3 ? "f8 cache, "
          : c.cache == DataType::kI8   ? "i8 cache, "
                                       : "")
      << NameOf(c.act) << ", " << c.num_heads << " heads on " << c.num_kv_heads << ", dim " << c.head_dim
      << ", block " << c.block_size << ", contexts";
  for (const SequenceSpec& s : c.sequences) out << " " << s.context << "/" << s.queries;
  if (c.window > 0) out << ", window " << c.window;
  if (c.logit_softcap > 0) out << ", cap " << c.logit_softcap;
  if (!c.sinks.empty()) out << ", sinks";
  return out;
}

// Heads, KV heads, head_dim and block_size.
struct HeadShape {
  int64_t num_heads, num_kv_heads, head_dim, block_size;
};

// Types of queries and cache.
struct Types {
  DataType act, cache;
};
inline constexpr Types kMmaTypes[] = {
    {DataType::kBF16, DataType::kBF16},   {DataType::kF16, DataType::kF16},
    {DataType::kBF16, DataType::kF8E4M3}, {DataType::kF16, DataType::kF8E4M3},
    {DataType::kBF16, DataType::kI8},     {DataType::kF16, DataType::kI8}};
// One pair for each form of cache, for cases about places: the rows and tokens that a kernel reads, and the
// place of the results, depend on the size of the cache's elements and on the scales of i8. The type of
// queries decides only how numbers are multiplied and rounded, which the cases over kMmaTypes show at every
// head_dim. With bf16, which barriers_test.py runs.
inline constexpr Types kCacheForms[] = {kMmaTypes[0], kMmaTypes[2], kMmaTypes[4]};

inline std::string TypesName(const testing::TestParamInfo<Types>& info) {
  const DataType cache = info.param.cache;
  return std::string(NameOf(info.param.act)) + (cache == DataType::kF8E4M3 ? "_f8"
                                                : cache == DataType::kI8   ? "_i8"
                                                                           : "");
}

}  // namespace somnus::cuda_test
