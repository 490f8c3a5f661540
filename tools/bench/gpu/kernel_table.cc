#include "tools/bench/gpu/kernel_table.h"

#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/ops.h"
#include "tools/bench/gpu/graph_timer.h"

namespace somnus {
namespace {

constexpr int64_t kHidden = 4096, kMlp = 12288, kHeads = 32, kKvHeads = 8, kHeadDim = 128, kVocab = 151936;
constexpr int64_t kBlock = 16, kMaxTokens = 4096, kMaxSeqs = 512;
constexpr DataType kAct = DataType::kBF16;
constexpr int64_t kQkv = (kHeads + 2 * kKvHeads) * kHeadDim;

class KernelBench {
 public:
  KernelBench(Device& device, SleepableAllocator& allocator) : device_(device), allocator_(allocator) {}
  ~KernelBench() {
    for (void* data : regions_) allocator_.Free(data).IgnoreError();
  }

  absl::StatusOr<std::vector<KernelRow>> Run() {
    OpsLimits limits;
    limits.max_tokens = kMaxTokens;
    limits.max_seqs = kMaxSeqs;
    limits.max_k = kMlp;
    limits.max_n = kVocab;
    limits.num_heads = kHeads;
    limits.head_dim = kHeadDim;
    limits.block_size = kBlock;
    limits.max_model_len = 131072;
    limits.vocab_size = kVocab;
    const int64_t scratch = OpsWorkspaceBytes(device_, limits);
    ASSIGN_OR_RETURN(void* workspace, Take(scratch));
    device_.SetWorkspace(workspace, scratch);
    RETURN_IF_ERROR(Linears());
    RETURN_IF_ERROR(Rows());
    RETURN_IF_ERROR(Attention());
    RETURN_IF_ERROR(Sampling());
    device_.SetWorkspace(nullptr, 0);
    return std::move(rows_);
  }

 private:
  absl::StatusOr<void*> Take(int64_t bytes) {
    ASSIGN_OR_RETURN(void* data, allocator_.Allocate("bench", bytes));
    regions_.push_back(data);
    return data;
  }
  absl::StatusOr<TensorView> Matrix(DataType type, int64_t rows, int64_t cols) {
    ASSIGN_OR_RETURN(void* data, Take(rows * cols * SizeOf(type)));
    FillRandom(device_, data, type, rows * cols, ++seed_, 1);
    return TensorView{data, type, rows, cols, cols};
  }
  absl::StatusOr<int32_t*> Ints(const std::vector<int32_t>& values) {
    ASSIGN_OR_RETURN(void* data, Take(static_cast<int64_t>(values.size()) * 4));
    device_.CopyToDevice(data, values.data(), static_cast<int64_t>(values.size()) * 4);
    RETURN_IF_ERROR(device_.Synchronize());
    return static_cast<int32_t*>(data);
  }

  // Adds a row with the time of one of `repeats` calls of `op` (graph_timer.h).
  absl::Status Time(const std::string& name, double bytes, double flops, int repeats,
                    const std::function<void()>& op) {
    ASSIGN_OR_RETURN(const double us, TimeOp(device_, repeats, op));
    rows_.push_back({name, us, bytes, flops});
    return absl::OkStatus();
  }

  // Weights alternate between copies that together exceed the L2 cache.
  absl::Status Linears() {
    const struct {
      const char* name;
      int64_t n, k;
    } shapes[] = {{"qkv", kQkv, kHidden},
                  {"out", kHidden, kHidden},
                  {"up", 2 * kMlp, kHidden},
                  {"down", kHidden, kMlp},
                  {"head", kVocab, kHidden}};
    ASSIGN_OR_RETURN(const TensorView x_all, Matrix(kAct, kMaxTokens, kMlp));
    ASSIGN_OR_RETURN(const TensorView y_all, Matrix(DataType::kF32, 512, kVocab));
    for (const auto& shape : shapes) {
      constexpr int kCopies = 4;
      std::vector<LinearWeight> weights(kCopies);
      for (LinearWeight& w : weights) {
        ASSIGN_OR_RETURN(const TensorView data, Matrix(kAct, shape.n, shape.k));
        w = {data.data, kAct, shape.n, shape.k};
      }
      const bool head = shape.n == kVocab;
      for (int64_t t : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 4096}) {
        if (t * shape.n > 512 * kVocab) continue;
        const TensorView x = {x_all.data, kAct, t, shape.k, shape.k};
        const TensorView y = {y_all.data, head ? DataType::kF32 : kAct, t, shape.n, shape.n};
        const double bytes = 2.0 * shape.n * shape.k + 2.0 * t * shape.k + (head ? 4.0 : 2.0) * t * shape.n;
        int turn = 0;
        RETURN_IF_ERROR(
            Time(absl::StrCat("linear ", shape.name, " [", shape.n, ", ", shape.k, "], ", t, " rows"), bytes,
                 2.0 * t * shape.n * shape.k, 40,
                 [&] { Linear(device_, x, weights[turn++ % kCopies], nullptr, y); }));
      }
      for (int i = 0; i < kCopies; ++i) {
        RETURN_IF_ERROR(allocator_.Free(regions_.back()));
        regions_.pop_back();
      }
    }
    return absl::OkStatus();
  }

  absl::Status Rows() {
    ASSIGN_OR_RETURN(const TensorView weight, Matrix(DataType::kF32, 1, kHidden));
    for (int64_t t : {int64_t{1}, int64_t{32}, int64_t{256}, kMaxTokens}) {
      ASSIGN_OR_RETURN(const TensorView residual, Matrix(DataType::kF32, t, kHidden));
      ASSIGN_OR_RETURN(const TensorView delta, Matrix(kAct, t, kHidden));
      ASSIGN_OR_RETURN(const TensorView out, Matrix(kAct, t, kHidden));
      RETURN_IF_ERROR(Time(absl::StrCat("add + RMSNorm, ", t, " x ", kHidden), t * kHidden * 12.0, 0, 200,
                           [&] { AddRmsNorm(device_, residual, delta, weight.row<float>(0), 1e-6, out); }));
      ASSIGN_OR_RETURN(const TensorView gate_up, Matrix(kAct, t, 2 * kMlp));
      ASSIGN_OR_RETURN(const TensorView mlp, Matrix(kAct, t, kMlp));
      RETURN_IF_ERROR(Time(absl::StrCat("SiLU * up, ", t, " x ", kMlp), t * kMlp * 6.0, 0, 200,
                           [&] { SiluAndMul(device_, gate_up, mlp); }));
    }
    return absl::OkStatus();
  }

  // `num_seqs` sequences of `context` tokens, of which the last `query` are computed.
  absl::Status AttentionCase(int64_t num_seqs, int64_t context, int64_t query, int repeats) {
    const int64_t blocks_each = (context + kBlock - 1) / kBlock, num_blocks = 1 + num_seqs * blocks_each;
    const int64_t block_bytes = KvBlockBytes(device_, kAct, kBlock, kKvHeads, kHeadDim), t = num_seqs * query;
    const size_t first_region = regions_.size();
    ASSIGN_OR_RETURN(const TensorView cache, Matrix(kAct, num_blocks, block_bytes / 2));
    ASSIGN_OR_RETURN(const TensorView qkv, Matrix(kAct, t, kQkv));
    ASSIGN_OR_RETURN(const TensorView out, Matrix(kAct, t, kHeads * kHeadDim));
    std::vector<int32_t> starts(num_seqs + 1), lengths(num_seqs, static_cast<int32_t>(context)),
        tables(num_seqs * blocks_each), positions(t), slots(t), groups(kHeads);
    std::iota(tables.begin(), tables.end(), 1);
    for (int64_t s = 0; s < num_seqs; ++s) {
      starts[s + 1] = static_cast<int32_t>((s + 1) * query);
      for (int64_t i = 0; i < query; ++i)
        positions[s * query + i] = static_cast<int32_t>(context - query + i);
    }
    for (int64_t h = 0; h < kHeads; ++h) groups[h] = static_cast<int32_t>(h / (kHeads / kKvHeads));
    AttentionBatch batch;
    batch.num_seqs = num_seqs;
    batch.num_tokens = t;
    batch.num_decodes = query == 1 ? num_seqs : 0;
    batch.max_query_len = query;
    batch.max_context_len = context;
    batch.max_blocks_per_seq = blocks_each;
    ASSIGN_OR_RETURN(batch.query_start, Ints(starts));
    ASSIGN_OR_RETURN(batch.context_len, Ints(lengths));
    ASSIGN_OR_RETURN(batch.block_tables, Ints(tables));
    ASSIGN_OR_RETURN(batch.positions, Ints(positions));
    ASSIGN_OR_RETURN(batch.slot_mapping, Ints(slots));
    ASSIGN_OR_RETURN(const int32_t* kv_head_of_head, Ints(groups));
    const KvCacheView view = {cache.data, kAct, num_blocks, kBlock, kKvHeads, kHeadDim};
    const double bytes = 2.0 * 2 * num_seqs * context * kKvHeads * kHeadDim;
    const double pairs = static_cast<double>(num_seqs) * query * (context - (query - 1) / 2.0);
    RETURN_IF_ERROR(
        Time(absl::StrCat("paged attention, ", num_seqs, " x ", context, " tokens, ", query, " new"), bytes,
             4.0 * pairs * kHeads * kHeadDim, repeats,
             [&] { PagedAttention(device_, qkv, kHeads, kv_head_of_head, 0.0884f, batch, view, out); }));
    for (; regions_.size() > first_region; regions_.pop_back())
      RETURN_IF_ERROR(allocator_.Free(regions_.back()));
    return absl::OkStatus();
  }

  absl::Status Attention() {
    for (const auto& [num_seqs, context] :
         {std::pair{1, 1024}, {1, 32768}, {1, 131072}, {8, 4096}, {32, 4096}, {128, 1024}, {256, 512}}) {
      RETURN_IF_ERROR(AttentionCase(num_seqs, context, 1, 50));
    }
    for (const auto& [num_seqs, context, query] : {std::tuple{1, 2048, 2048},
                                                   {1, 16384, 2048},
                                                   {1, 32768, 64},
                                                   {1, 131072, 16},
                                                   {4, 512, 512},
                                                   {16, 1024, 128}}) {
      RETURN_IF_ERROR(AttentionCase(num_seqs, context, query, 20));
    }
    return absl::OkStatus();
  }

  absl::Status Sampling() {
    for (int64_t rows : {1, 32, 256}) {
      ASSIGN_OR_RETURN(const TensorView logits, Matrix(DataType::kF32, rows, kVocab));
      ASSIGN_OR_RETURN(void* best, Take(rows * static_cast<int64_t>(sizeof(ScoredToken))));
      ASSIGN_OR_RETURN(void* tokens, Take(rows * 4));
      const double bytes = rows * kVocab * 4.0;
      RETURN_IF_ERROR(Time(absl::StrCat("arg max, ", rows, " x ", kVocab), bytes, 0, 50,
                           [&] { ArgMax(device_, logits, 0, static_cast<ScoredToken*>(best)); }));
      const std::vector<SampleRow> wanted(rows, SampleRow{0.7f, 0.9f, 50, 0.0f, 1, 1});
      ASSIGN_OR_RETURN(void* sample_rows, Take(rows * static_cast<int64_t>(sizeof(SampleRow))));
      device_.CopyToDevice(sample_rows, wanted.data(), rows * static_cast<int64_t>(sizeof(SampleRow)));
      RETURN_IF_ERROR(device_.Synchronize());
      RETURN_IF_ERROR(
          Time(absl::StrCat("sample (top-k 50, top-p 0.9), ", rows, " x ", kVocab), bytes, 0, 50, [&] {
            Sample(device_, logits, static_cast<const SampleRow*>(sample_rows),
                   static_cast<int32_t*>(tokens));
          }));
    }
    return absl::OkStatus();
  }

  Device& device_;
  SleepableAllocator& allocator_;
  std::vector<void*> regions_;
  std::vector<KernelRow> rows_;
  uint64_t seed_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<KernelRow>> MeasureKernels(Device& device, SleepableAllocator& allocator) {
  return KernelBench(device, allocator).Run();
}

}  // namespace somnus
