// Token and position embeddings, and gathered and pooled rows. All are bound by memory: per row, the index,
// the row read once and the row written once; almost no arithmetic.

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/rows.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr unsigned kPoolThreads = 128;

// Reads 4 + cols * sizeof(T) bytes a row, writes cols * 4. The f32 side gets 16-byte accesses, T's 8 or 16.
template <typename T, int kVector>
struct EmbeddingOp {
  static constexpr int kWidth = kVector;
  struct Row {
    const T* from;  // nullptr: another rank's token
    float* to;
  };
  using Loaded = Vec<T, kWidth>;

  const int32_t* ids;
  const T* table;
  int64_t k, vocab_begin, vocab_end;
  float* out;
  int64_t out_stride;

  __device__ Row At(int64_t row) const {
    const int64_t id = ids[row];
    const bool own = id >= vocab_begin && id < vocab_end;
    return {own ? table + (id - vocab_begin) * k : nullptr, out + row * out_stride};
  }
  __device__ Loaded Load(const Row& row, int col) const {
    if (row.from != nullptr) return LoadWide<kWidth>(row.from + col);
    return Loaded{};
  }
  __device__ void Store(const Row& row, int col, const Loaded& x) const {
    float values[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] = row.from == nullptr ? 0.0f : ToFloat(x[j]);
    StoreFloats(row.to + col, values);
  }
};

// Reads 4 + 8 * cols bytes a row, writes 4 * cols.
template <int kVector>
struct PositionOp {
  static constexpr int kWidth = kVector;
  struct Row {
    const float* from;
    float* to;
  };
  struct Loaded {
    Vec<float, kWidth> out, add;
  };

  const int32_t* positions;
  const float* table;
  int64_t table_stride, offset;
  float* out;
  int64_t out_stride;

  __device__ Row At(int64_t row) const {
    return {table + (positions[row] + offset) * table_stride, out + row * out_stride};
  }
  __device__ Loaded Load(const Row& row, int col) const {
    return {LoadWide<kWidth>(row.to + col), LoadWide<kWidth>(row.from + col)};
  }
  __device__ void Store(const Row& row, int col, Loaded x) const {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) x.out[j] += x.add[j];
    StoreVec(row.to + col, x.out);
  }
};

// Reads 4 bytes and the row, writes the row: `Word` is 16 bytes, or an element where rows are not aligned.
template <typename Word>
struct GatherOp {
  static constexpr int kWidth = 1;
  struct Row {
    const Word* from;
    Word* to;
  };
  using Loaded = Word;

  const Word* x;
  int64_t x_stride;  // words
  const int32_t* rows;
  Word* out;
  int64_t out_stride;

  __device__ Row At(int64_t row) const { return {x + rows[row] * x_stride, out + row * out_stride}; }
  __device__ Loaded Load(const Row& row, int col) const { return row.from[col]; }
  __device__ void Store(const Row& row, int col, const Loaded& value) const { row.to[col] = value; }
};

template <typename Word>
void GatherWords(CudaDevice& device, const TensorView& x, const int32_t* rows, const TensorView& out) {
  const int64_t elements = static_cast<int64_t>(sizeof(Word)) / SizeOf(x.dtype);  // of a word
  const GatherOp<Word> op{x.row<const Word>(0), x.stride / elements, rows, out.row<Word>(0),
                          out.stride / elements};
  LaunchElements<4>(device, op, out.rows, out.cols / elements);
}

// A thread for each column of a pool: reads each row once, 2 or 4 bytes an element, one after the other,
// since the order of the additions is the result's. Neighbours read neighbouring columns.
template <typename T>
__global__ void __launch_bounds__(kPoolThreads) Pool(const T* x, int64_t x_stride, const PooledRows* pools,
                                                     int64_t cols, float* out, int64_t out_stride) {
  JoinStream();
  const int64_t col = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  const PooledRows pool = pools[blockIdx.y];
  float* const to = out + pool.out_row * out_stride + col;
  const T* from = x + pool.first_row * x_stride + col;
  float sum = pool.continues ? *to : 0.0f;
#pragma unroll 8
  for (int32_t r = 0; r < pool.num_rows; ++r, from += x_stride) sum += ToFloat(*from);
  *to = sum / pool.divisor;
}

}  // namespace

void Embedding(Device& device, const int32_t* token_ids, const LinearWeight& table, int64_t vocab_begin,
               int64_t vocab_end, const TensorView& out) {
  if (out.rows == 0 || table.k == 0) return;
  const TensorView weights{table.data, table.dtype, table.n, table.k, table.k};
  const bool vectors = TakesVectors(4, table.k, {weights, out});
  DispatchAct(table.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto embed = [&](auto op) {
      op = {token_ids, weights.row<const T>(0), table.k,   vocab_begin,
            vocab_end, out.row<float>(0),       out.stride};
      LaunchElements<4>(AsCuda(device), op, out.rows, table.k);
    };
    vectors ? embed(EmbeddingOp<T, 4>{}) : embed(EmbeddingOp<T, 1>{});
  });
}

void AddPositionEmbedding(Device& device, const int32_t* positions, const TensorView& table, int64_t offset,
                          const TensorView& out) {
  if (out.rows == 0 || out.cols == 0) return;
  const auto add = [&](auto op) {
    op = {positions, table.row<const float>(0), table.stride, offset, out.row<float>(0), out.stride};
    LaunchElements<2>(AsCuda(device), op, out.rows, out.cols);
  };
  TakesVectors(4, out.cols, {table, out}) ? add(PositionOp<4>{}) : add(PositionOp<1>{});
}

void GatherRows(Device& device, const TensorView& x, const int32_t* rows, const TensorView& out) {
  if (out.rows == 0 || out.cols == 0) return;
  const int64_t vector = 16 / SizeOf(x.dtype);
  if (x.stride % vector == 0 && TakesVectors(vector, out.cols, {x, out})) {
    GatherWords<Vec<uint32_t, 4>>(AsCuda(device), x, rows, out);
  } else {
    DispatchAct(x.dtype,
                [&](auto tag) { GatherWords<typename decltype(tag)::type>(AsCuda(device), x, rows, out); });
  }
}

void PoolRows(Device& device, const TensorView& x, const PooledRows* pools, int64_t n,
              const TensorView& out) {
  if (x.cols == 0) return;
  const LaunchConfig config{.grid = dim3(static_cast<unsigned>((x.cols + kPoolThreads - 1) / kPoolThreads),
                                         static_cast<unsigned>(n)),
                            .block = dim3(kPoolThreads),
                            .overlaps_previous = true};
  DispatchAct(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Launch(AsCuda(device), config, Pool<T>, x.row<const T>(0), x.stride, pools, x.cols, out.row<float>(0),
           out.stride);
  });
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
