// The second kernel of prefill: adds up contexts that several blocks had parts of.

#include "kernels/cuda/attention_sections.h"
#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/launch.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr int kCombineThreads = kTileLanes;
constexpr int kFragments = 2;  // of a block
constexpr int kBatch = 4;      // parts that are loaded together
constexpr int kLevels = 4;     // of nodes of kBatch parts
static_assert(kBatch << kLevels == kMaxSpans);

struct alignas(16) CombineShared {
  int num_heads;
  // Then the heads.
};

// Some of a lane's sums.
struct SomeSums {
  SoftmaxState state;
  float o[kFragments][4] = {};

  __device__ void Load(SumsPlace place, int first, int dims) {
    const Vec<float, 4> rows = *At(place, dims / 8);
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      const Vec<float, 4> x = *At(place, first + f);
#pragma unroll
      for (int i = 0; i < 4; ++i) o[f][i] = x[i];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      state.max[r] = rows[r];
      state.sum[r] = rows[2 + r];
    }
  }
  __device__ void AddOlder(const SomeSums& older) {
    const MergeWeights weights[2] = {
        MergeRow(older.state.max[0], older.state.sum[0], state.max[0], state.sum[0]),
        MergeRow(older.state.max[1], older.state.sum[1], state.max[1], state.sum[1])};
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      MergeFragment(weights, {older.o[f][0], older.o[f][1], older.o[f][2], older.o[f][3]}, o[f]);
    }
  }
};

// MergeStack's walk, with the stack in registers. A leaf is kBatch parts; parts that do not exist count as
// sections that no row sees.
__device__ inline void AddParts(const PrefillParts& parts, int kv_head, int first_part, int count, int first,
                                SomeSums& sums) {
  SomeSums stack[kLevels];
  for (int base = 0; base < count; base += kBatch) {
    SomeSums leaf[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (base + i < count) leaf[i].Load(parts.Part(kv_head, first_part + base + i), first, parts.dims);
    }
    leaf[1].AddOlder(leaf[0]);
    leaf[3].AddOlder(leaf[2]);
    leaf[3].AddOlder(leaf[1]);
    const int index = base / kBatch;
    const bool last = base + kBatch >= count;
    bool waits = false;
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      if (waits) continue;
      if (index >> level & 1) {
        leaf[3].AddOlder(stack[level]);
      } else if (!last) {
        stack[level] = leaf[3];
        waits = true;
      }
    }
    sums = leaf[3];
  }
}

// Block (x, y, z): the tile whose parts begin at x, of KV head y, fragments [2 z, 2 z + 2) of its outputs; a
// thread for each lane of prefill's. Reads parts * (head_dim + 4) * 4 bytes a row from L2 (a half more, with
// the rows' sums read again by each block): bound by L2's latency, so twelve loads of 16 bytes go out at
// once. Most blocks end at once.
template <typename T, typename E>
__global__ void __launch_bounds__(kCombineThreads)
    CombineSectionsKernel(AttentionParams p, PrefillParts parts) {
  GridDependencyLaunch();
  GridDependencyWait();
  CombineShared& shared = SharedStorage<CombineShared>();
  int32_t* const heads = reinterpret_cast<int32_t*>(&shared + 1);
  const int part = static_cast<int>(blockIdx.x), first = static_cast<int>(blockIdx.z) * kFragments;
  const int kv_head = static_cast<int>(blockIdx.y);
  RowTile rows{};
  const PartRecord record = parts.Record(kv_head, part);
  if (record.parts == 0) return;
  FindHeads(p, kv_head, heads, shared.num_heads);
  rows.group = shared.num_heads;
  rows.query_begin = p.query_start[record.seq];
  rows.num_rows = (p.query_start[record.seq + 1] - rows.query_begin) * rows.group;
  SomeSums sums;
  AddParts(parts, kv_head, part, record.parts, first, sums);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = record.first_row + WarpId() * 16 + LaneId() / 4 + 8 * r;
    T* const out = rows.RowOf(static_cast<T*>(p.out), p.out_stride, heads, p.head_dim, row);
    if (out == nullptr) continue;
    const float scale = OutputScale(p, heads[row % rows.group], sums.state.max[r], sums.state.sum[r]);
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      StorePair<T, E>(out, p.head_dim, first + f, sums.o[f][2 * r] * scale, sums.o[f][2 * r + 1] * scale);
    }
  }
}

template <typename T, typename E>
void Start(CudaDevice& device, const AttentionShape& shape, const AttentionParams& params,
           const PrefillParts& parts) {
  Launch(device,
         {.grid = dim3(static_cast<unsigned>(parts.max_parts), static_cast<unsigned>(shape.num_kv_heads),
                       static_cast<unsigned>(parts.dims / 8 / kFragments)),
          .block = dim3(kCombineThreads),
          .shared_bytes = static_cast<int64_t>(sizeof(CombineShared)) + HeadBytes(shape.num_heads),
          .overlaps_previous = true},
         CombineSectionsKernel<T, E>, params, parts);
}

}  // namespace

void CombineSections(CudaDevice& device, const AttentionShape& shape, const AttentionParams& params,
                     const PrefillParts& parts) {
  // A cache of 8 bits decides the order of dims alone (OutputDim), and that order is the same for both types.
  const bool bytes = SizeOf(shape.cache) == 1;
  if (shape.act == DataType::kBF16) {
    (bytes ? Start<bf16, f8e4m3> : Start<bf16, bf16>)(device, shape, params, parts);
  } else {
    (bytes ? Start<f16, f8e4m3> : Start<f16, f16>)(device, shape, params, parts);
  }
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
