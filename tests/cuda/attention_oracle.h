#pragma once
// The right result of attention: the CPU's op in f32, a sequence at a time.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/cuda/attention_case.h"
#include "tests/cuda/rows_test_util.h"

namespace somnus::cuda_test {

// Appends the rows of sequence `i` of the case. `kv` holds the sequence's cached tokens:
// [context][num_kv_heads][K, V][head_dim]. The sequence's queries are in `qkv_rows` from `first_row` on.
inline void AppendOracle(const AttentionCase& c, size_t i, float scale, const std::vector<float>& kv,
                         DeviceMatrix& qkv_rows, int64_t first_row, std::vector<std::vector<double>>* rows) {
  const int64_t width = qkv_rows.cols();
  constexpr int64_t kBlock = 16;
  const int64_t context = c.sequences[i].context, queries = c.sequences[i].queries;
  kernel_test::Bench bench(CpuIsa::kBest, 1,
                           {.max_tokens = context,
                            .num_heads = c.num_heads,
                            .head_dim = c.head_dim,
                            .block_size = kBlock,
                            .max_model_len = context});
  kernel_test::Matrix qkv(DataType::kF32, context, width);
  const int64_t token_floats = 2 * c.num_kv_heads * c.head_dim;
  std::vector<int32_t> positions(context), table;
  for (int64_t p = 0; p < context; ++p) {
    positions[p] = static_cast<int32_t>(p);
    for (int64_t g = 0; g < c.num_kv_heads; ++g) {
      const float* from = kv.data() + p * token_floats + 2 * g * c.head_dim;
      float* k = qkv.row(p) + (c.num_heads + g) * c.head_dim;
      std::copy_n(from, c.head_dim, k);
      std::copy_n(from + c.head_dim, c.head_dim, k + c.num_kv_heads * c.head_dim);
    }
    const int64_t query = p - (context - queries);
    if (query < 0) continue;
    const std::vector<float> row = qkv_rows.GetRow(first_row + query);
    for (int64_t col = 0; col < c.num_heads * c.head_dim; ++col) qkv.Set(p, col, row[col]);
  }
  const int64_t blocks = (context + kBlock - 1) / kBlock;
  for (int64_t b = 0; b < blocks; ++b) table.push_back(static_cast<int32_t>(b));
  kernel_test::Buffer memory(blocks *
                             KvBlockBytes(*bench.device, DataType::kF32, kBlock, c.num_kv_heads, c.head_dim));
  const KvCacheView cache{memory.as<void>(), DataType::kF32, blocks, kBlock, c.num_kv_heads, c.head_dim};
  AttentionBatch batch{.num_seqs = 1, .num_tokens = context};
  batch.positions = batch.slot_mapping = positions.data();
  QkNormRopeAndCache(*bench.device, qkv.view(), c.num_heads, nullptr, nullptr, 1e-6, {}, batch, cache);
  const int32_t starts[] = {0, static_cast<int32_t>(queries)}, contexts[] = {static_cast<int32_t>(context)};
  batch.num_tokens = batch.max_query_len = queries;
  batch.max_context_len = context;
  batch.query_start = starts;
  batch.context_len = contexts;
  batch.block_tables = table.data();
  batch.max_blocks_per_seq = blocks;
  batch.positions = positions.data() + context - queries;
  kernel_test::Matrix out(DataType::kF32, queries, c.num_heads * c.head_dim);
  PagedAttention(*bench.device, qkv.view(context - queries, queries), c.num_heads, c.kv_head_of_head.data(),
                 {.scale = scale,
                  .window = c.window,
                  .logit_softcap = c.logit_softcap,
                  .sinks = c.sinks.empty() ? nullptr : c.sinks.data()},
                 batch, cache, out.view());
  for (int64_t r = 0; r < queries; ++r) {
    rows->emplace_back(out.row(r), out.row(r) + c.num_heads * c.head_dim);
  }
}

}  // namespace somnus::cuda_test
