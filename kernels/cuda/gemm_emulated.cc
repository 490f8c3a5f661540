// The emulator's replacement of the library: plain loops on the host, queued as a kernel of one thread a
// block, so that a product runs when the stream runs and can be captured in a graph.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda_types.h"
#include "kernels/emulator/options.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr int64_t kColumnsPerBlock = 64;

// Partial sums of a row's elements i, i + 8, ...: independent chains, which the compiler makes a vector of.
template <typename T>
float Dot(const float* a, const T* b, int64_t k) {
  float sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= k; i += 8) {
    for (int64_t j = 0; j < 8; ++j) sums[j] += a[i + j] * ToFloat(b[i + j]);
  }
  for (; i < k; ++i) sums[i % 8] += a[i] * ToFloat(b[i]);
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

template <typename T, typename Out>
void MultiplyKernel(GemmCall call) {
  const int64_t begin = blockIdx.x * kColumnsPerBlock, end = std::min(begin + kColumnsPerBlock, call.w.n);
  const int64_t k = call.w.k;
  std::vector<float> w(static_cast<size_t>(k));
  for (int64_t n = begin; n < end; ++n) {
    const T* row = static_cast<const T*>(call.w.data) + n * k;
    std::transform(row, row + k, w.begin(), [](T x) { return ToFloat(x); });
    const float bias = call.bias == nullptr ? 0 : ToFloat(static_cast<const Out*>(call.bias)[n]);
    for (int64_t r = 0; r < call.x.rows; ++r) {
      call.y.row<Out>(r)[n] = FromFloat<Out>(Dot(w.data(), call.x.row<T>(r), k) + bias);
    }
  }
}

class EmulatedGemm final : public Gemm {
 public:
  int64_t WorkspaceBytes() const override { return 0; }

  // Refuses rows at odd addresses, as the library does.
  absl::Status Run(CudaDevice& device, const GemmCall& call) override {
    if (call.x.rows == 0 || call.w.n == 0) return absl::OkStatus();
    const int64_t size = SizeOf(call.w.dtype);
    if (call.w.k * size % 4 != 0 || (call.x.rows > 1 && call.x.stride * size % 4 != 0)) {
      return absl::UnimplementedError("rows are not aligned to 4 bytes");
    }
    if (chosen_.insert(BucketOf(call)).second) ++stats_.unmeasured;
    const LaunchConfig config{
        .grid = dim3(static_cast<unsigned>((call.w.n + kColumnsPerBlock - 1) / kColumnsPerBlock)),
        .block = dim3(1)};
    DispatchAct(call.w.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if (call.y.dtype == DataType::kF32) return Launch(device, config, MultiplyKernel<T, float>, call);
      Launch(device, config, MultiplyKernel<T, T>, call);
    });
    return absl::OkStatus();
  }

  // There is a single way, which runs once and is remembered like the library's choice.
  absl::Status Tune(CudaDevice& device, absl::Span<const GemmCall> calls) override {
    if (calls.empty()) return absl::InvalidArgumentError("no product to measure");
    for (const GemmCall& call : calls) {
      if (!(KeyOf(call) == KeyOf(calls.front())))
        return absl::InvalidArgumentError("products of different shapes are measured together");
    }
    if (!measured_.insert(BucketOf(calls.front())).second) return absl::OkStatus();
    ++stats_.measured;
    chosen_.insert(BucketOf(calls.front()));
    for (const GemmCall& call : calls) {
      if (absl::Status status = Run(device, call); !status.ok()) return status;
    }
    return device.Synchronize();
  }

  Stats stats() const override { return stats_; }

 private:
  static GemmKey BucketOf(const GemmCall& call) {
    GemmKey key = KeyOf(call);
    key.rows = BucketRows(key.rows);
    return key;
  }

  absl::flat_hash_set<GemmKey> measured_, chosen_;
  Stats stats_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Gemm>> Gemm::Create(const ChipLimits&) {
  if (!emulator::GetOptions().has_matrix_library)
    return absl::UnavailableError("the emulator has no library");
  return std::make_unique<EmulatedGemm>();
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
