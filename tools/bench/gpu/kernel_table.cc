#include "tools/bench/gpu/kernel_table.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/ops.h"
#include "tools/bench/gpu/graph_timer.h"

namespace somnus {
namespace {

constexpr int64_t kBlock = 16;
constexpr int64_t kMaxHeadRows = 512;  // a step's logits have no more rows
constexpr DataType kAct = DataType::kBF16;

class KernelBench {
 public:
  KernelBench(const ModelConfig& model, const KernelSizes& sizes, const GpuCeilings& ceilings, Device& device,
              SleepableAllocator& allocator, BenchReport& report)
      : sizes_(sizes),
        ceilings_(ceilings),
        device_(device),
        allocator_(allocator),
        report_(report),
        heads_(model.num_heads),
        kv_heads_(model.num_kv_heads),
        head_dim_(model.head_dim),
        hidden_(model.hidden_size),
        mlp_(model.intermediate_size),
        vocab_(model.vocab_size) {}
  ~KernelBench() { FreeFrom(0).IgnoreError(); }

  absl::Status Run() {
    const OpsLimits limits = Limits();
    const int64_t scratch = OpsWorkspaceBytes(device_, limits);
    ASSIGN_OR_RETURN(void* workspace, Take(scratch));
    device_.SetWorkspace(workspace, scratch);
    report_.Text(absl::StrFormat("\n%-52s %10s %10s %8s %10s", "op", "us", "GB/s", "of copy", "TFLOP/s"));
    RETURN_IF_ERROR(Linears(limits.max_tokens));
    RETURN_IF_ERROR(Rows());
    for (const KernelSizes::Attention& size : sizes_.attention) RETURN_IF_ERROR(Attention(size));
    RETURN_IF_ERROR(Sampling());
    device_.SetWorkspace(nullptr, 0);
    return absl::OkStatus();
  }

 private:
  struct Work {
    double bytes = 0;  // that must be moved at least
    double flops = 0;
    int64_t copies = 1;  // of weights, or of K and V, that calls take in turns
  };

  OpsLimits Limits() const {
    OpsLimits limits;
    limits.max_tokens =
        std::max(*std::max_element(sizes_.linear_rows.begin(), sizes_.linear_rows.end()),
                 *std::max_element(sizes_.activation_rows.begin(), sizes_.activation_rows.end()));
    limits.max_seqs = kMaxHeadRows;
    for (const KernelSizes::Attention& size : sizes_.attention) {
      limits.max_tokens = std::max(limits.max_tokens, size.num_seqs * size.query);
      limits.max_model_len = std::max(limits.max_model_len, size.context);
    }
    limits.max_k = std::max({hidden_, mlp_, heads_ * head_dim_});
    limits.max_n = std::max({vocab_, 2 * mlp_, hidden_, Qkv()});
    limits.num_heads = heads_;
    limits.head_dim = head_dim_;
    limits.block_size = kBlock;
    limits.vocab_size = vocab_;
    return limits;
  }
  int64_t Qkv() const { return (heads_ + 2 * kv_heads_) * head_dim_; }

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

  absl::Status FreeFrom(size_t first_region) {
    absl::Status first = device_.Synchronize();  // the filling of a region may still be under way
    for (; regions_.size() > first_region; regions_.pop_back())
      first.Update(allocator_.Free(regions_.back()));
    return first;
  }
  bool Starts(const std::string& name) { return report_.StartsOp("kernels", name); }

  // Adds a row with the time of a call of `op`, out of `repeats` calls (graph_timer.h).
  absl::Status Time(const std::string& name, const Work& work, int repeats, const std::function<void()>& op) {
    ASSIGN_OR_RETURN(const double us, TimeOp(device_, std::min(repeats, sizes_.max_repeats), op));
    const double gbps = work.bytes / us * 1e-3, of_copy = gbps / ceilings_.copy_gbps;
    const double tflops = work.flops / us * 1e-6;
    return report_.Row(
        "kernels", name,
        {{"us", us}, {"gbps", gbps}, {"of_copy", of_copy}, {"tflops", tflops}, {"copies", work.copies}},
        absl::StrFormat("%-52s %10.1f %10.1f %8.2f %10.1f", name, us, gbps, of_copy, tflops));
  }

  struct LinearShape {
    const char* name;
    int64_t n, k;
  };

  absl::Status Linears(int64_t max_tokens) {
    const size_t first_region = regions_.size();
    ASSIGN_OR_RETURN(const TensorView x,
                     Matrix(kAct, max_tokens, std::max({mlp_, hidden_, heads_ * head_dim_})));
    ASSIGN_OR_RETURN(const TensorView y, Matrix(DataType::kF32, kMaxHeadRows, vocab_));
    for (const LinearShape& shape : {LinearShape{"qkv", Qkv(), hidden_},
                                     {"out", hidden_, heads_ * head_dim_},
                                     {"up", 2 * mlp_, hidden_},
                                     {"down", hidden_, mlp_},
                                     {"head", vocab_, hidden_}}) {
      RETURN_IF_ERROR(Linear(shape, x, y));
    }
    return FreeFrom(first_region);
  }

  // Weights alternate between copies that together exceed the L2 cache.
  absl::Status Linear(const LinearShape& shape, const TensorView& x_all, const TensorView& y_all) {
    constexpr size_t kCopies = 4;
    const size_t first_region = regions_.size();
    const bool head = shape.n == vocab_;
    std::vector<LinearWeight> weights;
    for (const int64_t t : sizes_.linear_rows) {
      if (t * shape.n > kMaxHeadRows * vocab_) continue;
      const std::string name =
          absl::StrCat("linear ", shape.name, " [", shape.n, ", ", shape.k, "], ", t, " rows");
      if (!Starts(name)) continue;
      while (weights.size() < kCopies) {
        ASSIGN_OR_RETURN(const TensorView data, Matrix(kAct, shape.n, shape.k));
        weights.push_back({data.data, kAct, shape.n, shape.k});
      }
      const TensorView x = {x_all.data, kAct, t, shape.k, shape.k};
      const TensorView y = {y_all.data, head ? DataType::kF32 : kAct, t, shape.n, shape.n};
      Work work;
      work.bytes = 2.0 * shape.n * shape.k + 2.0 * t * shape.k + (head ? 4.0 : 2.0) * t * shape.n;
      work.flops = 2.0 * t * shape.n * shape.k;
      work.copies = kCopies;
      size_t turn = 0;
      RETURN_IF_ERROR(
          Time(name, work, 40, [&] { somnus::Linear(device_, x, weights[turn++ % kCopies], nullptr, y); }));
    }
    return FreeFrom(first_region);
  }

  absl::Status Rows() {
    ASSIGN_OR_RETURN(const TensorView weight, Matrix(DataType::kF32, 1, hidden_));
    for (const int64_t t : sizes_.activation_rows) {
      const size_t first_region = regions_.size();
      if (const std::string name = absl::StrCat("add + RMSNorm, ", t, " x ", hidden_); Starts(name)) {
        ASSIGN_OR_RETURN(const TensorView residual, Matrix(DataType::kF32, t, hidden_));
        ASSIGN_OR_RETURN(const TensorView delta, Matrix(kAct, t, hidden_));
        ASSIGN_OR_RETURN(const TensorView out, Matrix(kAct, t, hidden_));
        RETURN_IF_ERROR(Time(name, {.bytes = t * hidden_ * 12.0}, 200,
                             [&] { AddRmsNorm(device_, residual, delta, weight.row<float>(0), 1e-6, out); }));
      }
      if (const std::string name = absl::StrCat("SiLU * up, ", t, " x ", mlp_); Starts(name)) {
        ASSIGN_OR_RETURN(const TensorView gate_up, Matrix(kAct, t, 2 * mlp_));
        ASSIGN_OR_RETURN(const TensorView out, Matrix(kAct, t, mlp_));
        RETURN_IF_ERROR(
            Time(name, {.bytes = t * mlp_ * 6.0}, 200, [&] { SiluAndMul(device_, gate_up, out); }));
      }
      RETURN_IF_ERROR(FreeFrom(first_region));
    }
    return absl::OkStatus();
  }

  // A batch, except for the block tables.
  absl::StatusOr<AttentionBatch> Batch(const KernelSizes::Attention& size) {
    const int64_t t = size.num_seqs * size.query;
    std::vector<int32_t> starts(size.num_seqs + 1),
        lengths(size.num_seqs, static_cast<int32_t>(size.context));
    std::vector<int32_t> positions(t), slots(t);
    for (int64_t s = 0; s < size.num_seqs; ++s) {
      starts[s + 1] = static_cast<int32_t>((s + 1) * size.query);
      for (int64_t i = 0; i < size.query; ++i)
        positions[s * size.query + i] = static_cast<int32_t>(size.context - size.query + i);
    }
    AttentionBatch batch;
    batch.num_seqs = size.num_seqs;
    batch.num_tokens = t;
    batch.num_decodes = size.query == 1 ? size.num_seqs : 0;
    batch.max_query_len = size.query;
    batch.max_context_len = size.context;
    batch.max_blocks_per_seq = (size.context + kBlock - 1) / kBlock;
    ASSIGN_OR_RETURN(batch.query_start, Ints(starts));
    ASSIGN_OR_RETURN(batch.context_len, Ints(lengths));
    ASSIGN_OR_RETURN(batch.positions, Ints(positions));
    ASSIGN_OR_RETURN(batch.slot_mapping, Ints(slots));
    return batch;
  }

  // The heads' KV heads, by group.
  absl::StatusOr<int32_t*> KvHeads() {
    std::vector<int32_t> groups(heads_);
    for (int64_t h = 0; h < heads_; ++h) groups[h] = static_cast<int32_t>(h / (heads_ / kv_heads_));
    return Ints(groups);
  }

  absl::Status Attention(const KernelSizes::Attention& size) {
    const std::string name = absl::StrCat("paged attention, ", size.num_seqs, " x ", size.context,
                                          " tokens, ", size.query, " new");
    if (!Starts(name)) return absl::OkStatus();
    const size_t first_region = regions_.size();
    const int repeats = std::min(size.query == 1 ? 50 : 20, sizes_.max_repeats);
    ASSIGN_OR_RETURN(AttentionBatch batch, Batch(size));
    ASSIGN_OR_RETURN(const int32_t* kv_head_of_head, KvHeads());
    const int64_t blocks = size.num_seqs * batch.max_blocks_per_seq;
    const int64_t block_bytes = KvBlockBytes(device_, kAct, kBlock, kv_heads_, head_dim_);
    const int64_t copies = std::clamp(sizes_.kv_bytes / (blocks * block_bytes), int64_t{1}, int64_t{repeats});
    std::vector<const int32_t*> tables(copies);
    for (int64_t i = 0; i < copies; ++i) {
      std::vector<int32_t> table(blocks);
      std::iota(table.begin(), table.end(), static_cast<int32_t>(1 + i * blocks));
      ASSIGN_OR_RETURN(tables[i], Ints(table));
    }
    ASSIGN_OR_RETURN(const TensorView cache, Matrix(kAct, 1 + copies * blocks, block_bytes / 2));
    ASSIGN_OR_RETURN(const TensorView qkv, Matrix(kAct, batch.num_tokens, Qkv()));
    ASSIGN_OR_RETURN(const TensorView out, Matrix(kAct, batch.num_tokens, heads_ * head_dim_));
    const KvCacheView view = {cache.data, kAct, 1 + copies * blocks, kBlock, kv_heads_, head_dim_};
    const double pairs = static_cast<double>(batch.num_tokens) * (size.context - (size.query - 1) / 2.0);
    Work work;
    work.bytes = 2.0 * 2 * size.num_seqs * size.context * kv_heads_ * head_dim_;
    work.flops = 4.0 * pairs * heads_ * head_dim_;
    work.copies = copies;
    size_t turn = 0;
    RETURN_IF_ERROR(Time(name, work, repeats, [&] {
      batch.block_tables = tables[turn++ % tables.size()];
      PagedAttention(device_, qkv, heads_, kv_head_of_head, {.scale = 0.0884f}, batch, view, out);
    }));
    return FreeFrom(first_region);
  }

  absl::Status Sampling() {
    for (const int64_t rows : sizes_.sampled_rows) {
      const std::string best_name = absl::StrCat("arg max, ", rows, " x ", vocab_);
      const std::string sample_name = absl::StrCat("sample (top-k 50, top-p 0.9), ", rows, " x ", vocab_);
      const bool starts_best = Starts(best_name), starts_sample = Starts(sample_name);
      if (!starts_best && !starts_sample) continue;
      const size_t first_region = regions_.size();
      ASSIGN_OR_RETURN(const TensorView logits, Matrix(DataType::kF32, rows, vocab_));
      ASSIGN_OR_RETURN(void* best, Take(rows * static_cast<int64_t>(sizeof(ScoredToken))));
      ASSIGN_OR_RETURN(void* tokens, Take(rows * 4));
      const std::vector<SampleRow> wanted(rows, SampleRow{0.7f, 0.9f, 50, 0.0f, 1, 1});
      ASSIGN_OR_RETURN(void* sample_rows, Take(rows * static_cast<int64_t>(sizeof(SampleRow))));
      device_.CopyToDevice(sample_rows, wanted.data(), rows * static_cast<int64_t>(sizeof(SampleRow)));
      RETURN_IF_ERROR(device_.Synchronize());
      const Work work = {.bytes = rows * vocab_ * 4.0};
      if (starts_best) {
        RETURN_IF_ERROR(
            Time(best_name, work, 50, [&] { ArgMax(device_, logits, 0, static_cast<ScoredToken*>(best)); }));
      }
      if (starts_sample) {
        RETURN_IF_ERROR(Time(sample_name, work, 50, [&] {
          Sample(device_, logits, static_cast<const SampleRow*>(sample_rows), static_cast<int32_t*>(tokens));
        }));
      }
      RETURN_IF_ERROR(FreeFrom(first_region));
    }
    return absl::OkStatus();
  }

  const KernelSizes& sizes_;
  const GpuCeilings& ceilings_;
  Device& device_;
  SleepableAllocator& allocator_;
  BenchReport& report_;
  std::vector<void*> regions_;
  const int64_t heads_, kv_heads_, head_dim_, hidden_, mlp_, vocab_;
  uint64_t seed_ = 0;
};

}  // namespace

absl::Status MeasureKernels(const ModelConfig& model, const KernelSizes& sizes, const GpuCeilings& ceilings,
                            Device& device, SleepableAllocator& allocator, BenchReport& report) {
  return KernelBench(model, sizes, ceilings, device, allocator, report).Run();
}

}  // namespace somnus
