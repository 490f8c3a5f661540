// Cache layout, cache writes and paged attention: splits the work over threads; the arithmetic is in
// attention_impl.h.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/workspace.h"
#include "kernels/ops.h"

namespace somnus::cpu {
namespace {

// The query heads sorted by the KV head that serves them.
struct HeadGroups {
  int32_t* heads;   // [num_heads]
  int32_t* begins;  // [num_kv_heads + 1] into heads

  static HeadGroups Make(const int32_t* kv_head_of_head, int64_t num_heads, int64_t num_kv_heads,
                         char* memory) {
    HeadGroups groups;
    groups.heads = reinterpret_cast<int32_t*>(memory);
    groups.begins = groups.heads + num_heads;
    int32_t count = 0;
    for (int64_t g = 0; g < num_kv_heads; ++g) {
      groups.begins[g] = count;
      for (int64_t h = 0; h < num_heads; ++h) {
        if (kv_head_of_head[h] == g) groups.heads[count++] = static_cast<int32_t>(h);
      }
    }
    groups.begins[num_kv_heads] = count;
    return groups;
  }
  int64_t size(int64_t g) const { return begins[g + 1] - begins[g]; }
};

// Queries of one sequence against one KV head, and their cost.
struct Item {
  AttentionItem item;
  int64_t rows;   // queries times heads
  int64_t first;  // token that the first query sees
  int64_t end;    // of the tokens that the last query sees
  // The cost of all tokens before `token`.
  int64_t CostUpTo(int64_t token) const {
    // Reading a token's K and V costs about as much as using K and V for four rows.
    return (token - first) * (rows + 4);
  }
  int64_t Cost() const { return CostUpTo(end); }
};

// Calls fn(Item) for every (sequence, KV head, block of queries) of the step, in a fixed order.
template <typename Fn>
void ForEachItem(const AttentionBatch& batch, const HeadGroups& groups, const AttentionArgs& args,
                 const Fn& fn) {
  for (int64_t i = 0; i < batch.num_seqs; ++i) {
    const int32_t* blocks = batch.block_tables + i * batch.max_blocks_per_seq;
    const int64_t query_end = batch.query_start[i + 1];
    for (int64_t g = 0; g < args.cache.num_kv_heads; ++g) {
      if (groups.size(g) == 0) continue;
      const int64_t queries = std::max<int64_t>(1, kAttentionRows / groups.size(g));
      for (int64_t q = batch.query_start[i]; q < query_end; q += queries) {
        const int64_t end = std::min(query_end, q + queries);
        fn(Item{.item = {.query_begin = q, .query_end = end, .blocks = blocks, .kv_head = g},
                .rows = (end - q) * groups.size(g),
                .first = FirstToken(batch.positions[q], args.window),
                .end = batch.positions[end - 1] + 1});
      }
    }
  }
}

const AttentionKernels& KernelsFor(const KernelTable& table, const AttentionArgs& args) {
  const AttentionKernels* special =
      table.special_attention == nullptr ? nullptr : table.special_attention(args.cache, args.out_type);
  return special != nullptr ? *special : table.attention_for(args.cache);
}

// One op's items, shared by cost: the step's cost is a line that the threads divide in proportion to their
// speeds, and an item belongs to the thread whose part has the item's middle. An item that the parts of two
// or more threads touch is shared section by section, each section by its own middle, where there is room for
// the sections' sums. Every thread walks the whole line and comes to the same decisions.
class Shares {
 public:
  Shares(const CpuDevice& cpu, const AttentionArgs& args, const HeadGroups& groups, char* memory)
      : kernels_(KernelsFor(cpu.kernels(), args)),
        args_(args),
        groups_(groups),
        scratch_bytes_(AttentionScratchBytes(args.cache.head_dim)),
        scratch_(memory),
        done_(reinterpret_cast<std::atomic<int32_t>*>(memory + cpu.num_threads() * scratch_bytes_)),
        partials_(reinterpret_cast<char*>(done_) + AttentionCountBytes(cpu.num_threads())),
        partial_room_(cpu.workspace() + cpu.workspace_bytes() - partials_) {
    for (int t = 0; t < cpu.num_threads(); ++t) new (&done_[t]) std::atomic<int32_t>(0);
  }

  // The thread's part of the items; `total` is the cost of all items.
  void Run(const AttentionBatch& batch, int64_t total, int thread, const Partition& partition) {
    Walk walk{.args = args_,
              .scratch = scratch_ + thread * scratch_bytes_,
              .total = total,
              .thread = thread,
              .partition = partition};
    ForEachItem(batch, groups_, args_, [&](const Item& item) {
      const int64_t cost = item.Cost();
      walk.args.heads = groups_.heads + groups_.begins[item.item.kv_head];
      walk.args.num_heads = groups_.size(item.item.kv_head);
      if (IsShared(walk, item, cost)) {
        RunSections(walk, item);
      } else if (walk.OwnerOf(walk.before + cost / 2) == thread) {
        kernels_.whole(walk.args, item.item, walk.scratch);
      }
      walk.before += cost;
    });
  }

 private:
  // Where a thread is on the line.
  struct Walk {
    AttentionArgs args;
    char* scratch;
    int64_t total;
    int thread;
    const Partition& partition;
    int64_t before = 0;
    int64_t shared = 0;        // items
    int64_t partial_used = 0;  // bytes
    int OwnerOf(int64_t cost) const { return partition.OwnerOf(cost, total); }
  };

  int64_t section_tokens() const { return SectionTokens(args_.cache.block_size); }
  int64_t FirstSection(const Item& item) const { return item.first / section_tokens(); }
  int64_t EndSection(const Item& item) const { return (item.end - 1) / section_tokens() + 1; }
  int64_t NumSections(const Item& item) const { return EndSection(item) - FirstSection(item); }
  int64_t BytesOfPartial(const Item& item) const { return PartialBytes(item.rows, args_.cache.head_dim); }

  bool IsShared(const Walk& walk, const Item& item, int64_t cost) const {
    return item.rows <= kAttentionRows && NumSections(item) > 1 &&
           walk.OwnerOf(walk.before) != walk.OwnerOf(walk.before + cost - 1) &&
           walk.partial_used + NumSections(item) * BytesOfPartial(item) <= partial_room_;
  }

  void RunSections(Walk& walk, const Item& item) {
    const int64_t sections = NumSections(item), first = FirstSection(item), bytes = BytesOfPartial(item);
    char* const partials = partials_ + walk.partial_used;
    int32_t mine = 0;
    for (int64_t s = first; s < first + sections; ++s) {
      const int64_t begin = std::max(item.first, s * section_tokens());
      const int64_t end = std::min(item.end, (s + 1) * section_tokens());
      if (walk.OwnerOf(walk.before + item.CostUpTo((begin + end) / 2)) != walk.thread) continue;
      kernels_.section(walk.args, item.item, s, walk.scratch, partials + (s - first) * bytes);
      ++mine;
    }
    if (mine > 0 && done_[walk.shared].fetch_add(mine, std::memory_order_acq_rel) + mine == sections)
      kernels_.join(walk.args, item.item, first + sections, walk.scratch, partials, bytes);
    ++walk.shared;
    walk.partial_used += sections * bytes;
  }

  const AttentionKernels& kernels_;
  const AttentionArgs& args_;
  const HeadGroups& groups_;
  const int64_t scratch_bytes_;
  char* const scratch_;
  std::atomic<int32_t>* const done_;  // [num_threads]: sections of each shared item that are done
  char* const partials_;
  const int64_t partial_room_;
};

}  // namespace

int64_t KvBlockBytes(const Device& device, DataType dtype, int64_t block_size, int64_t num_kv_heads,
                     int64_t head_dim, bool latent) {
  return num_kv_heads * (latent ? LatentHeadBytes : KvHeadBytes)(dtype, block_size, head_dim);
}

void QkNormRopeAndCache(Device& device, const TensorView& qkv, int64_t num_heads, const float* q_norm,
                        const float* k_norm, double eps, const RopeTable& rope, const AttentionBatch& batch,
                        const KvCacheView& cache) {
  CpuDevice& cpu = AsCpu(device);
  const QkArgs args{.qkv = static_cast<float*>(qkv.data),
                    .qkv_stride = qkv.stride,
                    .num_heads = num_heads,
                    .q_norm = q_norm,
                    .k_norm = k_norm,
                    .eps = static_cast<float>(eps),
                    .cos = rope.cos,
                    .sin = rope.sin,
                    .q_scale = rope.q_scale,
                    .positions = batch.positions,
                    .slots = batch.slot_mapping,
                    .cache = cache};
  const int64_t width = (num_heads + 4 * cache.num_kv_heads) * cache.head_dim;
  cpu.ParallelFor(batch.num_tokens, batch.num_tokens * width,
                  [&](int64_t begin, int64_t end) { cpu.kernels().qk_norm_rope_cache(args, begin, end); });
}

void LatentRopeAndCache(Device& device, const TensorView& row, const float* norm, double eps,
                        const TensorView& queries, int64_t num_heads, const LatentShape& shape,
                        const RopeTable& table, const AttentionBatch& batch, const KvCacheView& cache,
                        const TensorView& out) {
  CpuDevice& cpu = AsCpu(device);
  const LatentArgs args{.row = static_cast<float*>(row.data),
                        .row_stride = row.stride,
                        .norm = norm,
                        .eps = static_cast<float>(eps),
                        .queries = static_cast<const float*>(queries.data),
                        .query_stride = queries.stride,
                        .num_heads = num_heads,
                        .nope = shape.nope,
                        .rope = shape.rope,
                        .latent = shape.latent,
                        .interleaved = shape.interleaved,
                        .cos = table.cos,
                        .sin = table.sin,
                        .positions = batch.positions,
                        .slots = batch.slot_mapping,
                        .cache = cache,
                        .out = static_cast<float*>(out.data),
                        .out_stride = out.stride};
  const int64_t width = 2 * cache.head_dim + num_heads * shape.rope;
  cpu.ParallelFor(batch.num_tokens, batch.num_tokens * width,
                  [&](int64_t begin, int64_t end) { cpu.kernels().latent_rope_cache(args, begin, end); });
}

void PagedAttention(Device& device, const TensorView& qkv, int64_t num_heads, const int32_t* kv_head_of_head,
                    const AttentionRule& rule, const AttentionBatch& batch, const KvCacheView& cache,
                    const TensorView& out) {
  CpuDevice& cpu = AsCpu(device);
  const HeadGroups groups = HeadGroups::Make(kv_head_of_head, num_heads, cache.num_kv_heads, cpu.workspace());
  const bool f8 = cache.dtype == DataType::kF8E4M3;
  const AttentionArgs args{.q = static_cast<const float*>(qkv.data),
                           .q_stride = qkv.stride,
                           .out = static_cast<char*>(out.data),
                           .out_stride = out.stride,
                           .out_type = out.dtype,
                           .heads = nullptr,
                           .num_heads = 0,
                           .scale = f8 ? rule.scale * cache.k_scale * kF8Unit : rule.scale,
                           .v_scale = f8 ? cache.v_scale * kF8Unit : 1.0f,
                           .window = rule.window,
                           .logit_softcap = rule.logit_softcap,
                           .sinks = rule.sinks,
                           .positions = batch.positions,
                           .cache = cache};
  int64_t total = 0;
  ForEachItem(batch, groups, args, [&](const Item& item) { total += item.Cost(); });
  Shares shares(cpu, args, groups, cpu.workspace() + AttentionHeadBytes(num_heads + cache.num_kv_heads));
  cpu.OnThreads(total * cache.head_dim / 16,
                [&](int thread, const Partition& partition) { shares.Run(batch, total, thread, partition); });
}

void CopyBlocks(Device& device, const KvCacheView* layers, int64_t num_layers, const int32_t* src,
                const int32_t* dst, int64_t count) {
  if (num_layers == 0) return;
  const int64_t bytes = layers[0].num_kv_heads * HeadBytesOf(layers[0]);
  // A thread takes whole layers: copies of one layer may depend on each other's order.
  AsCpu(device).ParallelFor(num_layers, num_layers * count * bytes / 8, [&](int64_t begin, int64_t end) {
    for (int64_t layer = begin; layer < end; ++layer) {
      char* data = static_cast<char*>(layers[layer].data);
      for (int64_t i = 0; i < count; ++i) {
        std::memmove(data + dst[i] * bytes, data + src[i] * bytes, static_cast<size_t>(bytes));
      }
    }
  });
}

void SwapBlocks(Device& device, const KvCacheView* layers, int64_t num_layers, const KvHostPool& pool,
                SwapDirection direction, const BlockSwap* swaps, int64_t count) {
  const int64_t bytes = layers[0].num_kv_heads * HeadBytesOf(layers[0]);
  AsCpu(device).ParallelFor(count, num_layers * count * bytes / 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      char* pooled = static_cast<char*>(pool.data) + swaps[i].host_block * num_layers * bytes;
      for (int64_t layer = 0; layer < num_layers; ++layer, pooled += bytes) {
        char* const cached = static_cast<char*>(layers[layer].data) + swaps[i].device_block * bytes;
        const bool to_host = direction == SwapDirection::kToHost;
        std::memcpy(to_host ? pooled : cached, to_host ? cached : pooled, static_cast<size_t>(bytes));
      }
    }
  });
}

}  // namespace somnus::cpu
