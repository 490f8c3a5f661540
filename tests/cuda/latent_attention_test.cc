// Latent attention on a GPU against the CPU's ops: the write of rows, the rotation of queries, and attention
// over rows that are keys and values at once.

#include "tests/cuda/rows_test_util.h"

namespace somnus {
namespace {

using namespace cuda_test;

constexpr int64_t kTokens = 45, kBlock = 16, kBlocks = 5;

struct Case {
  DataType type;
  int64_t num_heads;
  LatentShape sizes;
};

// A layer's inputs in the device's memory and, with the same values, in f32 for the CPU's ops.
class Layer {
 public:
  explicit Layer(const Case& c)
      : c_(c),
        width_(c.sizes.latent + c.sizes.rope),
        row_(c.type, kTokens, width_, {8, 8}),
        queries_(c.type, kTokens, c.num_heads * (c.sizes.nope + c.sizes.rope), {8, 8}),
        lifted_(c.type, kTokens, c.num_heads * width_, {8, 8}),
        out_(c.type, kTokens, c.num_heads * width_, {8, 8}),
        host_row_(DataType::kF32, kTokens, width_),
        host_queries_(DataType::kF32, kTokens, queries_.cols()),
        host_lifted_(DataType::kF32, kTokens, lifted_.cols()),
        host_out_(DataType::kF32, kTokens, out_.cols()),
        norm_(kernel_test::RandomFloats(c.sizes.latent, 4)),
        cos_(kernel_test::RandomFloats(kTokens * c.sizes.rope / 2, 5)),
        sin_(kernel_test::RandomFloats(kTokens * c.sizes.rope / 2, 6)) {
    row_.Randomize(1, 1, &host_row_);
    queries_.Randomize(2, 1, &host_queries_);
    lifted_.Randomize(3, 1, &host_lifted_);
  }

  void RunOnGpu(Device& device) {
    DeviceBuffer memory(CacheBytes(device, c_.type));
    Run(device, c_.type, memory.device<void>(), row_.view(), queries_.view(), lifted_.view(), out_.view());
  }
  void RunOnCpu() {
    kernel_test::Bench cpu(CpuIsa::kBest, 1,
                           {.num_heads = c_.num_heads, .head_dim = width_, .block_size = kBlock});
    kernel_test::Buffer memory(CacheBytes(*cpu.device, DataType::kF32));
    Run(*cpu.device, DataType::kF32, memory.as<void>(), host_row_.view(), host_queries_.view(),
        host_lifted_.view(), host_out_.view());
  }

  // The device rounds rows of the cache, queries and outputs to its type.
  void Check() {
    for (int64_t t = 0; t < kTokens; ++t) {
      const std::vector<float> lifted = lifted_.GetRow(t), out = out_.GetRow(t);
      for (int64_t i = 0; i < lifted_.cols(); ++i) {
        ASSERT_NEAR(lifted[i], host_lifted_.Get(t, i), Allowed(c_.type, host_lifted_.Get(t, i), 2e-6))
            << "token " << t << ", column " << i << " of the queries";
        const double epsilon = kernel_test::Epsilon(c_.type);
        ASSERT_NEAR(out[i], host_out_.Get(t, i), 1e-5 + 12 * epsilon * (1 + std::fabs(host_out_.Get(t, i))))
            << "token " << t << ", column " << i << " of the output";
      }
    }
  }

 private:
  int64_t CacheBytes(const Device& device, DataType type) const {
    return kBlocks * KvBlockBytes(device, type, kBlock, 1, width_, /*latent=*/true);
  }

  // The first 40 tokens as one chunk, the rest as a second chunk.
  void Run(Device& device, DataType type, void* memory, const TensorView& row, const TensorView& queries,
           const TensorView& lifted, const TensorView& out) {
    KvCacheView cache{memory, type, kBlocks, kBlock, 1, width_};
    cache.latent = true;
    std::vector<int32_t> positions, slots;
    const std::vector<int32_t> table = {3, 1, 4};
    for (int32_t p = 0; p < kTokens; ++p) {
      positions.push_back(p);
      slots.push_back(table[p / kBlock] * static_cast<int32_t>(kBlock) + p % static_cast<int32_t>(kBlock));
    }
    DeviceArray<int32_t> device_positions(positions), device_slots(slots), tables(table),
        starts({0, 40, 0, kTokens - 40}), contexts({40, kTokens}),
        kv_heads(std::vector<int32_t>(c_.num_heads, 0));
    for (const int64_t step : {0, 1}) {
      const int64_t begin = 40 * step, count = step == 0 ? 40 : kTokens - 40;
      const auto rows = [&](TensorView view) {
        view.data = static_cast<char*>(view.data) + begin * view.stride * SizeOf(view.dtype);
        view.rows = count;
        return view;
      };
      AttentionBatch batch{.num_seqs = 1, .num_tokens = count, .max_query_len = count};
      batch.max_context_len = begin + count;
      batch.query_start = starts.On(device) + 2 * step;
      batch.context_len = contexts.On(device) + step;
      batch.block_tables = tables.On(device);
      batch.max_blocks_per_seq = static_cast<int64_t>(table.size());
      batch.positions = device_positions.On(device) + begin;
      batch.slot_mapping = device_slots.On(device) + begin;
      LatentRopeAndCache(device, rows(row), norm_.On(device), 1e-6, rows(queries), c_.num_heads, c_.sizes,
                         {cos_.On(device), sin_.On(device)}, batch, cache, rows(lifted));
      PagedAttention(device, rows(lifted), c_.num_heads, kv_heads.On(device), {.scale = 0.2f}, batch, cache,
                     rows(out));
    }
    EXPECT_TRUE(device.Synchronize().ok());
  }

  const Case c_;
  const int64_t width_;
  DeviceMatrix row_, queries_, lifted_, out_;
  kernel_test::Matrix host_row_, host_queries_, host_lifted_, host_out_;
  DeviceArray<float> norm_, cos_, sin_;
};

TEST(LatentAttentionGpuTest, EqualsCpuSmall) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  for (const Case& c : {Case{DataType::kBF16, 3, {.nope = 5, .rope = 6, .latent = 10}},
                        Case{DataType::kF16, 6, {.nope = 16, .rope = 8, .latent = 300, .interleaved = false}},
                        Case{DataType::kF32, 4, {.nope = 8, .rope = 16, .latent = 64}}}) {
    SCOPED_TRACE(testing::Message() << NameOf(c.type) << ", latent " << c.sizes.latent);
    Layer layer(c);
    layer.RunOnGpu(*device);
    layer.RunOnCpu();
    layer.Check();
  }
}

}  // namespace
}  // namespace somnus
