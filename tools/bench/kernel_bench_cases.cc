#include "tools/bench/kernel_bench_cases.h"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "kernels/ops.h"

namespace somnus {
namespace {

constexpr int64_t kMaxTokens = 512;
constexpr int64_t kMaxContext = 32768;
constexpr int64_t kBlockSize = 16;

// Anonymous memory with huge pages, touched.
class Memory {
 public:
  explicit Memory(int64_t bytes) : bytes_(static_cast<size_t>(bytes) + kSlack) {
    void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) std::abort();
    data_ = static_cast<char*>(p);
    madvise(data_, bytes_, MADV_HUGEPAGE);
    std::memset(data_, 0, bytes_);
  }
  ~Memory() { munmap(data_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  template <typename T = char>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }

 private:
  static constexpr size_t kSlack = 4096;
  size_t bytes_;
  char* data_;
};

double Now(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Shapes {
  int64_t n, k;
};

class Cases {
 public:
  Cases(Device& device, const BenchModel& model, const BenchOptions& options,
        const std::function<void(const BenchResult&)>& report)
      : device_(device),
        model_(model),
        options_(options),
        report_(report),
        qkv_width_((model.heads + 2 * model.kv_heads) * model.head_dim),
        limits_{.max_tokens = kMaxTokens,
                .max_seqs = kMaxTokens,
                .max_k = std::max(model.intermediate, model.heads * model.head_dim),
                .max_n = model.vocab,
                .num_heads = model.heads,
                .head_dim = model.head_dim,
                .block_size = kBlockSize,
                .max_model_len = kMaxContext,
                .vocab_size = model.vocab},
        workspace_(OpsWorkspaceBytes(device, limits_)),
        act_(kMaxTokens * std::max(limits_.max_k, model.hidden) * 4),
        wide_(kMaxTokens * 2 * (model.intermediate + qkv_width_) * 4),
        residual_(kMaxTokens * model.hidden * 4),
        logits_(64 * model.vocab * 4),
        weights_(WeightBytes(DataType::kBF16)) {
    device.SetWorkspace(workspace_.as<void>(), OpsWorkspaceBytes(device, limits_));
    Fill(act_.as<uint16_t>(), kMaxTokens * limits_.max_k * 2);
    Fill(weights_.as<uint16_t>(), WeightBytes(DataType::kBF16) / 2);
    for (int64_t i = 0; i < kMaxTokens * 2 * (model.intermediate + qkv_width_); ++i) {
      wide_.as<float>()[i] = static_cast<float>(i * 2654435761 % 2001 - 1000) / 700;
    }
    device.BeginStep();
  }
  ~Cases() { device_.EndStep(); }

  void Run() {
    ForkJoin();
    for (const int64_t tokens : {1, 2, 4, 6, 8, 12, 14, 16, 32, 64, 128, 256, 512})
      Linears(tokens, DataType::kBF16, "", weights_.as<char>());
    OtherLinears(DataType::kF16, "f16 ");
    OtherLinears(DataType::kF32, "f32 ");
    for (const auto& [type, name] : {std::pair{DataType::kQ8_0, "Q8_0 "},
                                     {DataType::kQ4_0, "Q4_0 "},
                                     {DataType::kQ4_1, "Q4_1 "},
                                     {DataType::kQ5_0, "Q5_0 "},
                                     {DataType::kQ5_1, "Q5_1 "},
                                     {DataType::kIQ4_NL, "IQ4_NL "},
                                     {DataType::kQ2_K, "Q2_K "},
                                     {DataType::kQ3_K, "Q3_K "},
                                     {DataType::kQ4_K, "Q4_K "},
                                     {DataType::kQ5_K, "Q5_K "},
                                     {DataType::kQ6_K, "Q6_K "}}) {
      if (!ComputesQuantized(device_, type) || !HasWholeBlocks(type)) continue;
      for (const int64_t tokens : {1, 8, 32, 512}) Linears(tokens, type, name, weights_.as<char>());
    }
    for (const auto& [type, name] :
         {std::pair{DataType::kMXFP4, "MXFP4 "}, {DataType::kF8E4M3, "fp8_e4m3 "}}) {
      if (ComputesQuantized(device_, type) && HasWholeBlocks(type)) OtherLinears(type, name);
    }
    for (const int64_t tokens : {1, 16, 512}) Rows(tokens);
    for (const auto& [type, name] :
         {std::pair{DataType::kBF16, ""}, {DataType::kF8E4M3, "fp8_e4m3 "}, {DataType::kI8, "int8 "}}) {
      for (const int64_t context : {1024, 4096, 16384, 32768})
        Attention(type, name, "decode B=1 context " + std::to_string(context), 1, 1, context);
      Attention(type, name, "decode B=8 context 1024", 8, 1, 1024);
      Attention(type, name, "decode B=8 context 16384", 8, 1, 16384);  // more than most caches hold
      Attention(type, name, "decode B=32 context 256", 32, 1, 256);
      Attention(type, name, "prefill 512", 1, 512, 512);
      Attention(type, name, "chunk 128 at 1024", 1, 128, 1024);
      Attention(type, name, "chunk 512 at 8192", 1, 512, 8192);
    }
    Logits();
  }

 private:
  bool IsWanted(const std::string& op) const { return op.find(options_.filter) != std::string::npos; }

  void Time(const std::string& op, double bytes, double flops, BenchPeak peak,
            const std::function<void()>& run) {
    if (!IsWanted(op)) return;
    const clockid_t clock = options_.processor_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    const auto once = [&](int count) {
      const double start = Now(clock);
      for (int i = 0; i < count; ++i) run();
      return (Now(clock) - start) / count;
    };
    const double first = std::max(1e-7, once(1));
    const int count = static_cast<int>(std::clamp(1e-3 / first, 1.0, 2000.0));
    std::vector<double> seconds;
    for (int i = 0; i < options_.repeats; ++i) seconds.push_back(once(count));
    std::sort(seconds.begin(), seconds.end());
    report_({model_.name, op, seconds[0], seconds[seconds.size() / 2], bytes, flops, peak});
  }

  std::vector<Shapes> LayerShapes() const {
    return {{qkv_width_, model_.hidden},
            {model_.hidden, model_.heads * model_.head_dim},
            {2 * model_.intermediate, model_.hidden},
            {model_.hidden, model_.intermediate}};
  }

  bool HasWholeBlocks(DataType type) const {
    const std::vector<Shapes> shapes = LayerShapes();
    return std::all_of(shapes.begin(), shapes.end(),
                       [&](const Shapes& s) { return s.k % QuantBlockValues(type) == 0; });
  }

  int64_t WeightBytes(DataType type) const {
    int64_t bytes = PackedWeightBytes(device_, type, model_.vocab, model_.hidden);
    for (const Shapes& s : LayerShapes()) bytes += model_.layers * PackedWeightBytes(device_, type, s.n, s.k);
    return bytes;
  }

  // Fills with small normal numbers of either sign, for bf16, f16 and f32.
  static void Fill(uint16_t* data, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t hash = static_cast<uint32_t>(i) * 2654435761u;
      data[i] = static_cast<uint16_t>((hash >> 16 & 0x807f) | 0x3c00);
    }
  }

  // A scale is the exponent of a power of two: an arbitrary byte might give a subnormal scale, which is slow.
  static void FillMxfp4(uint8_t* data, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      data[i] = static_cast<uint8_t>(0x70 | (static_cast<uint32_t>(i) * 2654435761u >> 16 & 0x0f));
  }

  // Fills with numbers that are not NaN.
  static void FillFloat8(uint8_t* data, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      data[i] = static_cast<uint8_t>(static_cast<uint32_t>(i) * 2654435761u >> 16 & 0xb7);
  }

  TensorView Act(int64_t tokens, int64_t cols, DataType type = DataType::kBF16) {
    return {act_.as<void>(), type, tokens, cols, cols};
  }
  TensorView Wide(int64_t tokens, int64_t cols) {
    return {wide_.as<void>(), DataType::kF32, tokens, cols, cols};
  }
  TensorView Residual(int64_t tokens) {
    return {residual_.as<void>(), DataType::kF32, tokens, model_.hidden, model_.hidden};
  }
  TensorView LogitRows(int64_t rows) {
    return {logits_.as<void>(), DataType::kF32, rows, model_.vocab, model_.vocab};
  }

  void ForkJoin() {
    // The smallest Linear that pays for two threads: nearly all the time is fork and join.
    const LinearWeight w{weights_.as<void>(), DataType::kBF16, 512, 512};
    Time("linear 512x512 M=1 (L2; fork-join)", 0, 2.0 * 512 * 512, BenchPeak::kBF16,
         [&] { Linear(device_, Act(1, 512), w, nullptr, Wide(1, 512)); });
  }

  static std::string LinearsName(const std::string& type, int64_t tokens) {
    return "all linears " + type + "M=" + std::to_string(tokens);
  }

  // The whole model's matrices in layer order, as in a step. Few logits: at most 64 rows need logits.
  void Linears(int64_t tokens, DataType type, const std::string& name, char* weights) {
    const int64_t logit_rows = std::min<int64_t>(tokens, 64);
    double flops = 2.0 * static_cast<double>(logit_rows * model_.vocab * model_.hidden);
    for (const Shapes& s : LayerShapes())
      flops += 2.0 * static_cast<double>(model_.layers * tokens * s.n * s.k);
    const auto bytes = static_cast<double>(WeightBytes(type));
    const bool is_plain = type == DataType::kF16 || type == DataType::kF32;
    const DataType act = is_plain ? type : DataType::kBF16;
    const bool multiplies_bytes = IsQuantized(type) && type != DataType::kF8E4M3;
    const BenchPeak peak = is_plain           ? BenchPeak::kF32
                           : multiplies_bytes ? BenchPeak::kInt8
                                              : BenchPeak::kBF16;
    Time(LinearsName(name, tokens), bytes, flops, peak, [&] {
      char* w = weights;
      for (int64_t layer = 0; layer < model_.layers; ++layer) {
        for (const Shapes& s : LayerShapes()) {
          Linear(device_, Act(tokens, s.k, act), {w, type, s.n, s.k}, nullptr, Wide(tokens, s.n));
          w += PackedWeightBytes(device_, type, s.n, s.k);
        }
      }
      Linear(device_, Act(logit_rows, model_.hidden, act), {w, type, model_.vocab, model_.hidden}, nullptr,
             LogitRows(logit_rows));
    });
  }

  // Linears of types that cannot view the bf16 weights' bytes, unlike most of GGUF's types. Memory is taken
  // for these cases only.
  void OtherLinears(DataType type, const std::string& name) {
    constexpr int64_t kTokens[] = {1, 8, 32, 512};
    if (std::none_of(std::begin(kTokens), std::end(kTokens),
                     [&](int64_t tokens) { return IsWanted(LinearsName(name, tokens)); })) {
      return;
    }
    Memory weights(WeightBytes(type));
    if (type == DataType::kF8E4M3) {
      PackFloat8(weights.as<char>());
    } else if (type == DataType::kMXFP4) {
      FillMxfp4(weights.as<uint8_t>(), WeightBytes(type));
    } else {
      Fill(weights.as<uint16_t>(), WeightBytes(type) / 2);
    }
    for (const int64_t tokens : kTokens) Linears(tokens, type, name, weights.as<char>());
  }

  // The form of a panel of fp8 depends on its scales: here scales are of rows.
  void PackFloat8(char* w) {
    constexpr DataType kType = DataType::kF8E4M3;
    const auto pack = [&](int64_t n, int64_t k) {
      std::vector<uint8_t> row(static_cast<size_t>(MatrixRowBytes(kType, k)));
      FillFloat8(row.data(), static_cast<int64_t>(row.size()));
      const float scale = 0.01f;
      for (int64_t b = 0; b < k / kQuantBlock; ++b)
        std::memcpy(&row[static_cast<size_t>(b * QuantBlockBytes(kType))], &scale, sizeof(scale));
      for (int64_t r = 0; r < n; ++r) PackQuantizedRows(device_, {w, kType, n, k}, r, 1, row.data());
      w += PackedWeightBytes(device_, kType, n, k);
    };
    for (int64_t layer = 0; layer < model_.layers; ++layer) {
      for (const Shapes& s : LayerShapes()) pack(s.n, s.k);
    }
    pack(model_.vocab, model_.hidden);
  }

  void Rows(int64_t tokens) {
    const std::string m = " T=" + std::to_string(tokens);
    const std::vector<float> weight(model_.hidden, 1.0f);
    const TensorView out = Act(tokens, model_.hidden);
    Time("add_rms_norm" + m, 0, 4.0 * static_cast<double>(tokens * model_.hidden), BenchPeak::kF32, [&] {
      AddRmsNorm(device_, Residual(tokens), Wide(tokens, model_.hidden), weight.data(), 1e-5, out);
    });
    Time("silu_and_mul" + m, 0, 0, BenchPeak::kF32, [&] {
      SiluAndMul(device_, Wide(tokens, 2 * model_.intermediate), Act(tokens, model_.intermediate));
    });
    std::vector<int32_t> ids(tokens);
    for (int64_t t = 0; t < tokens; ++t) ids[t] = static_cast<int32_t>(t * 7919 % model_.vocab);
    const LinearWeight table{weights_.as<void>(), DataType::kBF16, model_.vocab, model_.hidden};
    Time("embedding" + m, 0, 0, BenchPeak::kF32,
         [&] { Embedding(device_, ids.data(), table, 0, model_.vocab, Residual(tokens)); });
  }

  // `type`: of the KV cache.
  void Attention(DataType type, const std::string& type_name, const std::string& shape, int64_t seqs,
                 int64_t queries, int64_t context) {
    const std::string name = type_name + shape;
    if (!IsWanted("attention " + name) && !IsWanted("qk_norm_rope_cache " + name)) return;
    const int64_t blocks_per_seq = (context + kBlockSize - 1) / kBlockSize,
                  num_blocks = seqs * blocks_per_seq + 1;
    const int64_t block_bytes = KvBlockBytes(device_, type, kBlockSize, model_.kv_heads, model_.head_dim);
    Memory data(num_blocks * block_bytes);
    if (type == DataType::kF8E4M3) {
      FillFloat8(data.as<uint8_t>(), num_blocks * block_bytes);
    } else {
      Fill(data.as<uint16_t>(), num_blocks * block_bytes / 2);
    }
    const KvCacheView cache{data.as<void>(), type, num_blocks, kBlockSize, model_.kv_heads, model_.head_dim};
    // Blocks in random places.
    std::vector<int32_t> tables(num_blocks - 1), starts = {0}, contexts, positions, slots, map;
    for (int64_t b = 0; b + 1 < num_blocks; ++b) tables[b] = static_cast<int32_t>(b + 1);
    std::shuffle(tables.begin(), tables.end(), std::mt19937(1));
    for (int64_t i = 0; i < seqs; ++i) {
      starts.push_back(static_cast<int32_t>((i + 1) * queries));
      contexts.push_back(static_cast<int32_t>(context));
      for (int64_t p = context - queries; p < context; ++p) {
        positions.push_back(static_cast<int32_t>(p));
        slots.push_back(
            static_cast<int32_t>(tables[i * blocks_per_seq + p / kBlockSize] * kBlockSize + p % kBlockSize));
      }
    }
    for (int64_t h = 0; h < model_.heads; ++h)
      map.push_back(static_cast<int32_t>(h * model_.kv_heads / model_.heads));
    const int64_t tokens = seqs * queries;
    AttentionBatch batch;
    batch.num_seqs = seqs;
    batch.num_tokens = tokens;
    batch.num_decodes = queries == 1 ? seqs : 0;
    batch.max_query_len = queries;
    batch.max_context_len = context;
    batch.query_start = starts.data();
    batch.context_len = contexts.data();
    batch.block_tables = tables.data();
    batch.max_blocks_per_seq = blocks_per_seq;
    batch.positions = positions.data();
    batch.slot_mapping = slots.data();
    const double pairs = static_cast<double>(seqs) * queries * (context - (queries - 1) / 2.0) * model_.heads;
    const double bytes = queries > 1 ? 0 : static_cast<double>(seqs * blocks_per_seq * block_bytes);
    const TensorView qkv = Wide(tokens, qkv_width_), out = Act(tokens, model_.heads * model_.head_dim);
    Time("attention " + name, bytes, 4.0 * pairs * static_cast<double>(model_.head_dim), BenchPeak::kBF16,
         [&] {
           PagedAttention(device_, qkv, model_.heads, map.data(), {.scale = 0.125f}, batch, cache, out);
         });
    const std::vector<float> norm(model_.head_dim, 1.0f), rope(kMaxContext * model_.head_dim / 2, 0.7f);
    const float* qk_norm = model_.qk_norm ? norm.data() : nullptr;
    Time("qk_norm_rope_cache " + name, 0, 0, BenchPeak::kF32, [&] {
      QkNormRopeAndCache(device_, qkv, model_.heads, qk_norm, qk_norm, 1e-6, {rope.data(), rope.data()},
                         batch, cache);
    });
  }

  void Logits() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 3);
    for (int64_t i = 0; i < 16 * model_.vocab; ++i) logits_.as<float>()[i] = normal(random);
    for (const int64_t rows : {1, 16}) {
      const std::string r = " R=" + std::to_string(rows);
      const double bytes = static_cast<double>(rows * model_.vocab * 4);
      std::vector<ScoredToken> best(rows * 20);
      Time("arg_max" + r, bytes, 0, BenchPeak::kF32,
           [&] { ArgMax(device_, LogitRows(rows), 0, best.data()); });
      std::vector<int32_t> ids(rows, 3), ranks(rows);
      std::vector<float> logprobs(rows);
      Time("log_probs top 20" + r, bytes, 0, BenchPeak::kF32, [&] {
        LogProbs(device_, LogitRows(rows), ids.data(), 20, logprobs.data(), ranks.data(), best.data());
      });
      SampleRow row{.temperature = 1, .top_p = 1, .top_k = 0, .min_p = 0, .seed = 1, .position = 1};
      std::vector<SampleRow> plain(rows, row);
      Time("sample" + r, bytes, 0, BenchPeak::kF32,
           [&] { Sample(device_, LogitRows(rows), plain.data(), ids.data()); });
      row.top_p = 0.9f;
      row.top_k = 50;
      std::vector<SampleRow> cut(rows, row);
      Time("sample top_k=50 top_p=0.9" + r, bytes, 0, BenchPeak::kF32,
           [&] { Sample(device_, LogitRows(rows), cut.data(), ids.data()); });
    }
  }

  Device& device_;
  const BenchModel& model_;
  const BenchOptions options_;
  const std::function<void(const BenchResult&)>& report_;
  const int64_t qkv_width_;
  const OpsLimits limits_;
  Memory workspace_, act_, wide_, residual_, logits_, weights_;
};

}  // namespace

const std::vector<BenchModel>& BenchModels() {
  static const std::vector<BenchModel>* const models = new std::vector<BenchModel>{
      {"smollm2", 30, 576, 1536, 9, 3, 64, 49152, false},
      {"qwen3", 28, 1024, 3072, 16, 8, 128, 151936, true},
      {"qwen2.5", 28, 1536, 8960, 12, 2, 128, 151936, false},
  };
  return *models;
}

void RunBenchCases(Device& device, const BenchModel& model, const BenchOptions& options,
                   const std::function<void(const BenchResult&)>& report) {
  Cases(device, model, options, report).Run();
}

}  // namespace somnus
