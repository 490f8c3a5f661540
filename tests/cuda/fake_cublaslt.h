#pragma once
// A cuBLASLt that multiplies nothing: the fake records calls, and returns the results that a test sets.
//
// There may be one fake at a time, because the library's functions carry no context.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "kernels/cuda/cublaslt_api.h"

namespace somnus::cuda_test {

class FakeCublasLt {
 public:
  struct Layout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t stride;
  };
  struct Operation {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    std::map<int, std::vector<char>> attributes;
    template <typename T>
    T Get(int attribute) const {
      T value{};
      const auto it = attributes.find(attribute);
      if (it == attributes.end()) return value;
      EXPECT_EQ(it->second.size(), sizeof(T)) << "attribute " << attribute;
      std::memcpy(&value, it->second.data(), sizeof(T));
      return value;
    }
  };
  // One call of cublasLtMatmul.
  struct Product {
    Operation operation;
    Layout a, b, d;
    const void *a_data, *b_data;
    void* d_data;
    uint64_t algorithm;
    void* workspace;
    size_t workspace_bytes;
    cudaStream_t stream;
  };
  struct Candidate {
    uint64_t algorithm;
    size_t workspace_bytes = 0;
    cublasStatus_t state = CUBLAS_STATUS_SUCCESS;
  };

  FakeCublasLt() { current_ = this; }
  ~FakeCublasLt() { current_ = nullptr; }
  FakeCublasLt(const FakeCublasLt&) = delete;
  FakeCublasLt& operator=(const FakeCublasLt&) = delete;

  const cuda_device::CublasLtApi& api() const { return kApi; }

  // The library's results.
  cublasStatus_t create_status = CUBLAS_STATUS_SUCCESS;
  cublasStatus_t heuristic_status = CUBLAS_STATUS_SUCCESS;
  cublasStatus_t check_status = CUBLAS_STATUS_SUCCESS;
  cublasStatus_t layout_status = CUBLAS_STATUS_SUCCESS;
  std::vector<Candidate> candidates = {{.algorithm = 7, .workspace_bytes = 1000}};
  std::set<uint64_t> failing_algorithms;  // cublasLtMatmul returns EXECUTION_FAILED for the given algorithms.

  // The calls so far.
  int handles = 0;  // alive
  int objects = 0;  // descriptors, layouts and preferences alive
  int heuristics = 0;
  int checks = 0;
  Operation preference;  // of the last heuristic
  uint64_t heuristic_rows = 0;
  std::vector<Product> products;

 private:
  static FakeCublasLt& It() { return *current_; }

  template <typename T>
  static cublasStatus_t Make(T** out, T value) {
    *out = new T(std::move(value));
    ++It().objects;
    return CUBLAS_STATUS_SUCCESS;
  }
  template <typename T>
  static cublasStatus_t Drop(void* object) {
    delete static_cast<T*>(object);
    --It().objects;
    return CUBLAS_STATUS_SUCCESS;
  }
  static cublasStatus_t SetAttribute(void* object, int attribute, const void* value, size_t bytes) {
    const char* from = static_cast<const char*>(value);
    static_cast<Operation*>(object)->attributes[attribute].assign(from, from + bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  static const Layout& LayoutOf(cublasLtMatrixLayout_t layout) { return *reinterpret_cast<Layout*>(layout); }

  static cublasStatus_t Heuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                  cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                  cublasLtMatmulPreference_t preference, int most,
                                  cublasLtMatmulHeuristicResult_t* results, int* count) {
    FakeCublasLt& it = It();
    ++it.heuristics;
    it.preference = *reinterpret_cast<Operation*>(preference);
    it.heuristic_rows = LayoutOf(b).cols;
    *count = 0;
    if (it.heuristic_status != CUBLAS_STATUS_SUCCESS) return it.heuristic_status;
    for (const Candidate& candidate : it.candidates) {
      if (*count == most) break;
      cublasLtMatmulHeuristicResult_t& result = results[(*count)++];
      result.algo.data[0] = candidate.algorithm;
      result.workspaceSize = candidate.workspace_bytes;
      result.state = candidate.state;
    }
    return CUBLAS_STATUS_SUCCESS;
  }
  static cublasStatus_t Check(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t*, cublasLtMatmulHeuristicResult_t* result) {
    ++It().checks;
    result->workspaceSize = 500;
    return It().check_status;
  }
  static cublasStatus_t Matmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha,
                               const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                               cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                               cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                               const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes,
                               cudaStream_t stream) {
    EXPECT_EQ(*static_cast<const float*>(alpha), 1.0f);
    EXPECT_EQ(*static_cast<const float*>(beta), 0.0f);
    EXPECT_EQ(c, d);
    EXPECT_EQ(c_layout, d_layout);
    It().products.push_back({*reinterpret_cast<Operation*>(operation), LayoutOf(a_layout), LayoutOf(b_layout),
                             LayoutOf(d_layout), a, b, d, algo->data[0], workspace, workspace_bytes, stream});
    return It().failing_algorithms.contains(algo->data[0]) ? CUBLAS_STATUS_EXECUTION_FAILED
                                                           : CUBLAS_STATUS_SUCCESS;
  }

  inline static FakeCublasLt* current_ = nullptr;
  static const cuda_device::CublasLtApi kApi;
};

inline const cuda_device::CublasLtApi FakeCublasLt::kApi = {
    .cublasLtCreate_fn =
        [](cublasLtHandle_t* handle) {
          if (It().create_status != CUBLAS_STATUS_SUCCESS) return It().create_status;
          ++It().handles;
          *handle = reinterpret_cast<cublasLtHandle_t>(&It());
          return CUBLAS_STATUS_SUCCESS;
        },
    .cublasLtDestroy_fn =
        [](cublasLtHandle_t handle) {
          EXPECT_EQ(static_cast<void*>(handle), static_cast<void*>(&It()));
          --It().handles;
          return CUBLAS_STATUS_SUCCESS;
        },
    .cublasLtGetStatusName_fn =
        [](cublasStatus_t status) {
          return status == CUBLAS_STATUS_EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED" : "CUBLAS_OTHER";
        },
    .cublasLtGetVersion_fn = []() -> size_t { return 130000; },
    .cublasLtMatmul_fn = &FakeCublasLt::Matmul,
    .cublasLtMatmulAlgoCheck_fn = &FakeCublasLt::Check,
    .cublasLtMatmulAlgoGetHeuristic_fn = &FakeCublasLt::Heuristic,
    .cublasLtMatmulDescCreate_fn =
        [](cublasLtMatmulDesc_t* out, cublasComputeType_t compute, cudaDataType_t scale) {
          return Make(reinterpret_cast<Operation**>(out), Operation{compute, scale, {}});
        },
    .cublasLtMatmulDescDestroy_fn = [](cublasLtMatmulDesc_t object) { return Drop<Operation>(object); },
    .cublasLtMatmulDescSetAttribute_fn =
        [](cublasLtMatmulDesc_t object, cublasLtMatmulDescAttributes_t attribute, const void* value,
           size_t bytes) { return SetAttribute(object, attribute, value, bytes); },
    .cublasLtMatmulPreferenceCreate_fn =
        [](cublasLtMatmulPreference_t* out) { return Make(reinterpret_cast<Operation**>(out), Operation{}); },
    .cublasLtMatmulPreferenceDestroy_fn =
        [](cublasLtMatmulPreference_t object) { return Drop<Operation>(object); },
    .cublasLtMatmulPreferenceSetAttribute_fn =
        [](cublasLtMatmulPreference_t object, cublasLtMatmulPreferenceAttributes_t attribute,
           const void* value, size_t bytes) { return SetAttribute(object, attribute, value, bytes); },
    .cublasLtMatrixLayoutCreate_fn =
        [](cublasLtMatrixLayout_t* out, cudaDataType_t type, uint64_t rows, uint64_t cols, int64_t stride) {
          if (It().layout_status != CUBLAS_STATUS_SUCCESS) return It().layout_status;
          return Make(reinterpret_cast<Layout**>(out), Layout{type, rows, cols, stride});
        },
    .cublasLtMatrixLayoutDestroy_fn = [](cublasLtMatrixLayout_t object) { return Drop<Layout>(object); },
};

}  // namespace somnus::cuda_test
