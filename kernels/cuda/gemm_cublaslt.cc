#include "kernels/cuda/gemm_cublaslt.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

// Algorithms that the library is asked for, and that Tune measures.
constexpr int kMaxCandidates = 8;
constexpr int kTuneRounds = 3;
constexpr double kHopeless = 1.5;  // times the best: measured once

cudaDataType_t CudaType(DataType type) {
  return type == DataType::kF32 ? CUDA_R_32F : type == DataType::kBF16 ? CUDA_R_16BF : CUDA_R_16F;
}

std::string NameOf(const GemmKey& key) {
  return absl::StrCat("a product of ", key.rows, " rows, n ", key.n, ", k ", key.k);
}

// For split sums. cuBLAS's documentation recommends 32 MiB on Hopper and less before; 8 MiB is an estimate.
int64_t WorkspaceBytesFor(const ChipLimits& chip) {
  return chip.compute_capability >= 90 ? int64_t{32} << 20 : int64_t{8} << 20;
}

// Between two events on the stream.
absl::StatusOr<double> TimeByEvents(cudaStream_t stream, absl::FunctionRef<absl::Status()> work) {
  cudaEvent_t begin = nullptr, end = nullptr;
  cudaError_t error = cudaEventCreate(&begin);
  if (error == cudaSuccess) error = cudaEventCreate(&end);
  if (error == cudaSuccess) error = cudaEventRecord(begin, stream);
  const absl::Status status = error == cudaSuccess ? work() : absl::OkStatus();
  float ms = 0;
  if (error == cudaSuccess) error = cudaEventRecord(end, stream);
  if (error == cudaSuccess) error = cudaEventSynchronize(end);
  if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, begin, end);
  if (begin != nullptr) cudaEventDestroy(begin);
  if (end != nullptr) cudaEventDestroy(end);
  if (!status.ok()) return status;
  if (error != cudaSuccess) return absl::InternalError(absl::StrCat("timing: ", cudaGetErrorString(error)));
  return ms;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Gemm>> Gemm::Create(const ChipLimits& chip) {
  const absl::StatusOr<const CublasLtApi*> api = CublasLtApi::Load();
  if (!api.ok()) return api.status();
  return CublasLtGemm::Create(**api, {.workspace_bytes = WorkspaceBytesFor(chip)}, TimeByEvents);
}

// Owns the library's descriptions of one product.
struct CublasLtGemm::Descriptors {
  explicit Descriptors(const CublasLtApi& api) : api(api) {}
  ~Descriptors() {
    if (operation != nullptr) api.cublasLtMatmulDescDestroy_fn(operation);
    for (cublasLtMatrixLayout_t layout : {x, w, y}) {
      if (layout != nullptr) api.cublasLtMatrixLayoutDestroy_fn(layout);
    }
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;

  template <typename T>
  cublasStatus_t Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return api.cublasLtMatmulDescSetAttribute_fn(operation, attribute, &value, sizeof(value));
  }

  const CublasLtApi& api;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t x = nullptr, w = nullptr, y = nullptr;
  const void* bias = nullptr;  // The operation points here.
};

struct CublasLtGemm::Plan {
  std::unique_ptr<Descriptors> descriptors;
  Choice choice;
};

CublasLtGemm::CublasLtGemm(const CublasLtApi& api, const Limits& limits, Stopwatch stopwatch)
    : api_(api),
      limits_(limits),
      stopwatch_(std::move(stopwatch)),
      plans_(limits.max_plans),
      choices_(limits.max_choices) {}

absl::StatusOr<std::unique_ptr<CublasLtGemm>> CublasLtGemm::Create(const CublasLtApi& api,
                                                                   const Limits& limits,
                                                                   Stopwatch stopwatch) {
  std::unique_ptr<CublasLtGemm> gemm(new CublasLtGemm(api, limits, std::move(stopwatch)));
  const absl::Status status = api.ToStatus(api.cublasLtCreate_fn(&gemm->handle_), "starting cuBLASLt");
  if (!status.ok()) {
    gemm->handle_ = nullptr;
    return status;
  }
  return gemm;
}

CublasLtGemm::~CublasLtGemm() {
  plans_.Clear();
  if (handle_ != nullptr) api_.cublasLtDestroy_fn(handle_);
}

absl::Status CublasLtGemm::Run(CudaDevice& device, const GemmCall& call) {
  return RunOn(device.stream(), call);
}

absl::Status CublasLtGemm::Tune(CudaDevice& device, absl::Span<const GemmCall> calls) {
  return TuneOn(device.stream(), calls);
}

absl::Status CublasLtGemm::RunOn(cudaStream_t stream, const GemmCall& call) {
  if (call.x.rows == 0 || call.w.n == 0) return absl::OkStatus();
  const GemmKey key = KeyOf(call);
  absl::StatusOr<Plan*> plan = FindPlan(key);
  if (!plan.ok()) return plan.status();
  if (!(*plan)->choice.found) {
    return absl::UnimplementedError(absl::StrCat("cuBLASLt has no way for ", NameOf(key)));
  }
  return Multiply(stream, call, *(*plan)->descriptors, (*plan)->choice);
}

absl::StatusOr<CublasLtGemm::Plan*> CublasLtGemm::FindPlan(const GemmKey& key) {
  if (std::unique_ptr<Plan>* known = plans_.Find(key)) return known->get();
  auto plan = std::make_unique<Plan>();
  absl::StatusOr<std::unique_ptr<Descriptors>> descriptors = Describe(key);
  if (!descriptors.ok()) return descriptors.status();
  plan->descriptors = *std::move(descriptors);
  absl::StatusOr<Choice> choice = Choose(key, *plan->descriptors);
  if (!choice.ok()) return choice.status();
  plan->choice = *choice;
  return plans_.Put(key, std::move(plan))->get();
}

absl::StatusOr<CublasLtGemm::Choice> CublasLtGemm::Choose(const GemmKey& key, const Descriptors& exact) {
  GemmKey bucket = key;
  bucket.rows = BucketRows(key.rows);
  const Choice* shared = choices_.Find(bucket);
  if (shared == nullptr) {
    absl::StatusOr<std::unique_ptr<Descriptors>> descriptors = Describe(bucket);
    if (!descriptors.ok()) return descriptors.status();
    absl::StatusOr<std::vector<Choice>> ideas = Ask(bucket, **descriptors);
    if (!ideas.ok()) return ideas.status();
    shared = choices_.Put(bucket, ideas->empty() ? Choice{.rows = bucket.rows} : ideas->front());
    ++stats_.unmeasured;
  }
  if (shared->rows == key.rows) return *shared;
  if (shared->found) {
    const Choice fitting = Check(*shared, exact);
    if (fitting.found) return fitting;
  }
  absl::StatusOr<std::vector<Choice>> ideas = Ask(key, exact);
  if (!ideas.ok()) return ideas.status();
  return ideas->empty() ? Choice{} : ideas->front();
}

absl::StatusOr<std::vector<CublasLtGemm::Choice>> CublasLtGemm::Ask(const GemmKey& key,
                                                                    const Descriptors& descriptors) {
  cublasLtMatmulPreference_t preference = nullptr;
  absl::Status status =
      api_.ToStatus(api_.cublasLtMatmulPreferenceCreate_fn(&preference), "cuBLASLt's preferences");
  if (!status.ok()) return status;
  cublasStatus_t result = CUBLAS_STATUS_SUCCESS;
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    if (result != CUBLAS_STATUS_SUCCESS) return;
    result = api_.cublasLtMatmulPreferenceSetAttribute_fn(preference, attribute, &value, sizeof(value));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(limits_.workspace_bytes));
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(key.w_alignment));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(key.x_alignment));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(key.y_alignment));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(key.y_alignment));
  cublasLtMatmulHeuristicResult_t found[kMaxCandidates] = {};
  int count = 0;
  if (result == CUBLAS_STATUS_SUCCESS) {
    result = api_.cublasLtMatmulAlgoGetHeuristic_fn(handle_, descriptors.operation, descriptors.w,
                                                    descriptors.x, descriptors.y, descriptors.y, preference,
                                                    kMaxCandidates, found, &count);
  }
  api_.cublasLtMatmulPreferenceDestroy_fn(preference);
  std::vector<Choice> ideas;
  status = api_.ToStatus(result, absl::StrCat("cuBLASLt's choice for ", NameOf(key)));
  if (absl::IsUnimplemented(status)) return ideas;
  if (!status.ok()) return status;
  for (int i = 0; i < std::min(count, kMaxCandidates); ++i) {
    const auto workspace = static_cast<int64_t>(found[i].workspaceSize);
    if (found[i].state != CUBLAS_STATUS_SUCCESS || workspace > limits_.workspace_bytes) continue;
    ideas.push_back({.found = true, .algo = found[i].algo, .workspace_bytes = workspace, .rows = key.rows});
  }
  return ideas;
}

CublasLtGemm::Choice CublasLtGemm::Check(const Choice& choice, const Descriptors& descriptors) {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      api_.cublasLtMatmulAlgoCheck_fn(handle_, descriptors.operation, descriptors.w, descriptors.x,
                                      descriptors.y, descriptors.y, &choice.algo, &result);
  const auto workspace = static_cast<int64_t>(result.workspaceSize);
  if (status != CUBLAS_STATUS_SUCCESS || workspace > limits_.workspace_bytes) return {};
  Choice fitting = choice;
  fitting.workspace_bytes = workspace;
  return fitting;
}

absl::StatusOr<std::unique_ptr<CublasLtGemm::Descriptors>> CublasLtGemm::Describe(const GemmKey& key) {
  auto made = std::make_unique<Descriptors>(api_);
  const cudaDataType_t act = CudaType(key.act), out = CudaType(key.out);
  const auto k = static_cast<uint64_t>(key.k), n = static_cast<uint64_t>(key.n),
             rows = static_cast<uint64_t>(key.rows);
  cublasStatus_t result = CUBLAS_STATUS_SUCCESS;
  const auto then = [&](auto step) {
    if (result == CUBLAS_STATUS_SUCCESS) result = step();
  };
  // The stride of a single row means nothing, and may be less than the row.
  const int64_t x_stride = key.rows == 1 ? key.k : key.x_stride,
                y_stride = key.rows == 1 ? key.n : key.y_stride;
  then([&] { return api_.cublasLtMatmulDescCreate_fn(&made->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F); });
  then([&] { return api_.cublasLtMatrixLayoutCreate_fn(&made->w, act, k, n, key.k); });
  then([&] { return api_.cublasLtMatrixLayoutCreate_fn(&made->x, act, k, rows, x_stride); });
  then([&] { return api_.cublasLtMatrixLayoutCreate_fn(&made->y, out, n, rows, y_stride); });
  then([&] { return made->Set(CUBLASLT_MATMUL_DESC_TRANSA, static_cast<int32_t>(CUBLAS_OP_T)); });
  if (key.bias) {
    then([&] {
      return made->Set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(CUBLASLT_EPILOGUE_BIAS));
    });
    then([&] { return made->Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(out)); });
  }
  const absl::Status status = api_.ToStatus(result, absl::StrCat("describing ", NameOf(key), " to cuBLASLt"));
  if (!status.ok()) return status;
  return made;
}

absl::Status CublasLtGemm::Multiply(cudaStream_t stream, const GemmCall& call, Descriptors& descriptors,
                                    const Choice& choice) {
  if (choice.workspace_bytes > call.workspace_bytes) {
    return absl::InternalError(absl::StrCat(NameOf(KeyOf(call)), " needs ", choice.workspace_bytes,
                                            " bytes of workspace, there are ", call.workspace_bytes));
  }
  cublasStatus_t result = CUBLAS_STATUS_SUCCESS;
  if (call.bias != descriptors.bias) {
    result = descriptors.Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias);
    if (result == CUBLAS_STATUS_SUCCESS) descriptors.bias = call.bias;
  }
  const float one = 1, zero = 0;
  if (result == CUBLAS_STATUS_SUCCESS) {
    result = api_.cublasLtMatmul_fn(handle_, descriptors.operation, &one, call.w.data, descriptors.w,
                                    call.x.data, descriptors.x, &zero, call.y.data, descriptors.y,
                                    call.y.data, descriptors.y, &choice.algo, call.workspace,
                                    static_cast<size_t>(choice.workspace_bytes), stream);
  }
  if (result == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return api_.ToStatus(result, NameOf(KeyOf(call)));
}

absl::Status CublasLtGemm::TuneOn(cudaStream_t stream, absl::Span<const GemmCall> calls) {
  if (calls.empty()) return absl::InvalidArgumentError("no product to measure");
  const GemmKey key = KeyOf(calls.front());
  for (const GemmCall& call : calls) {
    if (!(KeyOf(call) == key)) {
      return absl::InvalidArgumentError("products of different shapes are measured together");
    }
  }
  GemmKey bucket = key;
  bucket.rows = BucketRows(key.rows);
  if (const Choice* known = choices_.Find(bucket); known != nullptr && known->measured)
    return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<Descriptors>> descriptors = Describe(key);
  if (!descriptors.ok()) return descriptors.status();
  absl::StatusOr<std::vector<Choice>> ideas = Ask(key, **descriptors);
  if (!ideas.ok()) return ideas.status();
  Choice best{.rows = key.rows};
  double best_ms = std::numeric_limits<double>::infinity();
  for (const Choice& idea : *ideas) {
    const absl::StatusOr<double> ms = Measure(stream, calls, **descriptors, idea, best_ms);
    if (!ms.ok()) return ms.status();
    if (*ms < best_ms) {
      best_ms = *ms;
      best = idea;
    }
  }
  best.measured = true;
  choices_.Put(bucket, best);
  ++stats_.measured;
  plans_.Clear();  // Some may hold earlier choices.
  return absl::OkStatus();
}

absl::StatusOr<double> CublasLtGemm::Measure(cudaStream_t stream, absl::Span<const GemmCall> calls,
                                             Descriptors& descriptors, const Choice& choice, double best_ms) {
  const auto run = [&] {
    for (const GemmCall& call : calls) {
      const absl::Status status = Multiply(stream, call, descriptors, choice);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  };
  double best = std::numeric_limits<double>::infinity();
  if (!run().ok()) return best;  // Loads the kernel; some that are offered cannot run.
  for (int round = 0; round < kTuneRounds; ++round) {
    const absl::StatusOr<double> ms = stopwatch_(stream, run);
    if (!ms.ok()) return ms.status();
    best = std::min(best, *ms);
    if (best > kHopeless * best_ms) break;
  }
  return best;
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
