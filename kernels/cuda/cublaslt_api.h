#pragma once
// The entry points of cuBLASLt, found at run time: binaries start on machines without cuBLASLt.

#include <cublasLt.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda_api.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

#define SOMNUS_CUBLASLT_ENTRY_POINTS(X)   \
  X(cublasLtCreate)                       \
  X(cublasLtDestroy)                      \
  X(cublasLtGetStatusName)                \
  X(cublasLtGetVersion)                   \
  X(cublasLtMatmul)                       \
  X(cublasLtMatmulAlgoCheck)              \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)

// Each member has the type that cublasLt.h declares. Tests fill the table with functions of their own.
struct CublasLtApi {
#define SOMNUS_CUBLASLT_MEMBER(name) decltype(&::name) name##_fn = nullptr;
  SOMNUS_CUBLASLT_ENTRY_POINTS(SOMNUS_CUBLASLT_MEMBER)
#undef SOMNUS_CUBLASLT_MEMBER

  // The first of the libraries that base/shared_library.h can open. Unavailable says why each could not, or
  // which entry point is missing.
  static absl::StatusOr<CublasLtApi> Open(const std::vector<std::string>& libraries);

  // Version 13 or else 12, of SOMNUS_LIBRARY_PATH, or where the dynamic linker looks, or in the toolkit's
  // usual folder. Once per process.
  static absl::StatusOr<const CublasLtApi*> Load();

  // Unimplemented: cuBLASLt has no way for these operands. `what` names the failed operation.
  absl::Status ToStatus(cublasStatus_t status, absl::string_view what) const;
};

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
