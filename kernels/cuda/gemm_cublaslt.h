#pragma once
// Matrix products by cuBLASLt: plans (descriptors and the chosen algorithm) are made once per shape and kept.
//
// In cuBLASLt's column-major terms, y^T [n, rows] = w^T^T [n, k] * x^T [k, rows]: A is w, transposed; B is x;
// both are read along k. Sums are in f32 and rounded once: reductions of split sums in the output's type are
// not allowed.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/cuda/cublaslt_api.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_plan.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

// Used by one thread at a time.
class CublasLtGemm final : public Gemm {
 public:
  // Milliseconds that `work` takes on the stream.
  using Stopwatch =
      std::function<absl::StatusOr<double>(cudaStream_t stream, absl::FunctionRef<absl::Status()> work)>;
  struct Limits {
    int64_t workspace_bytes = 0;
    size_t max_plans = 2048;    // of exact shapes, about 1 KiB of host memory each
    size_t max_choices = 1024;  // of algorithms, by bucket of rows
  };

  // `api` must outlive the object.
  static absl::StatusOr<std::unique_ptr<CublasLtGemm>> Create(const CublasLtApi& api, const Limits& limits,
                                                              Stopwatch stopwatch);
  ~CublasLtGemm() override;

  int64_t WorkspaceBytes() const override { return limits_.workspace_bytes; }
  absl::Status Run(CudaDevice& device, const GemmCall& call) override;
  absl::Status Tune(CudaDevice& device, absl::Span<const GemmCall> calls) override;
  Stats stats() const override { return stats_; }

  // The same on any stream.
  absl::Status RunOn(cudaStream_t stream, const GemmCall& call);
  absl::Status TuneOn(cudaStream_t stream, absl::Span<const GemmCall> calls);

 private:
  struct Descriptors;
  struct Plan;
  // An algorithm, or that there is none (then `found` is false).
  struct Choice {
    bool found = false;
    cublasLtMatmulAlgo_t algo{};
    int64_t workspace_bytes = 0;
    int64_t rows = 0;  // the rows that the choice was made for
    bool measured = false;
  };

  CublasLtGemm(const CublasLtApi& api, const Limits& limits, Stopwatch stopwatch);

  absl::StatusOr<Plan*> FindPlan(const GemmKey& key);
  absl::StatusOr<Choice> Choose(const GemmKey& key, const Descriptors& exact);
  // The algorithms that the library proposes and that fit the workspace, best first; empty when there is
  // none.
  absl::StatusOr<std::vector<Choice>> Ask(const GemmKey& key, const Descriptors& descriptors);
  // The choice for these descriptors, `found` false when the choice does not fit.
  Choice Check(const Choice& choice, const Descriptors& descriptors);
  absl::StatusOr<std::unique_ptr<Descriptors>> Describe(const GemmKey& key);
  absl::Status Multiply(cudaStream_t stream, const GemmCall& call, Descriptors& descriptors,
                        const Choice& choice);

  // The least milliseconds that all calls take together; infinity when some call cannot run this way. A
  // choice far from `best_ms` is measured only once.
  absl::StatusOr<double> Measure(cudaStream_t stream, absl::Span<const GemmCall> calls,
                                 Descriptors& descriptors, const Choice& choice, double best_ms);

  const CublasLtApi& api_;
  const Limits limits_;
  const Stopwatch stopwatch_;
  cublasLtHandle_t handle_ = nullptr;
  LruCache<GemmKey, std::unique_ptr<Plan>> plans_;  // By exact rows.
  LruCache<GemmKey, Choice> choices_;               // By BucketRows(rows).
  Stats stats_;
};

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
