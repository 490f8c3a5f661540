#include "kernels/cuda/cublaslt_api.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "base/shared_library.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

absl::StatusOr<CublasLtApi> CublasLtApi::Open(const std::vector<std::string>& libraries) {
  const absl::StatusOr<void*> library = OpenLibrary(libraries);
  if (absl::IsUnavailable(library.status())) {
    return absl::UnavailableError(absl::StrCat("there is no cuBLASLt: ", library.status().message()));
  }
  if (!library.ok()) return library.status();
  CublasLtApi api;
#define SOMNUS_CUBLASLT_RESOLVE(name)                                                \
  api.name##_fn = reinterpret_cast<decltype(api.name##_fn)>(dlsym(*library, #name)); \
  if (api.name##_fn == nullptr) return absl::UnavailableError("cuBLASLt has no " #name);
  SOMNUS_CUBLASLT_ENTRY_POINTS(SOMNUS_CUBLASLT_RESOLVE)
#undef SOMNUS_CUBLASLT_RESOLVE
  return api;
}

absl::StatusOr<const CublasLtApi*> CublasLtApi::Load() {
  static const auto* const api =
      new absl::StatusOr<CublasLtApi>(Open({"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13",
                                            "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so.12"}));
  if (!api->ok()) return api->status();
  return &**api;
}

absl::Status CublasLtApi::ToStatus(cublasStatus_t status, absl::string_view what) const {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const char* name = cublasLtGetStatusName_fn(status);
  const std::string message = absl::StrCat(what, ": ", name == nullptr ? "?" : name);
  switch (status) {
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return absl::UnimplementedError(message);
    case CUBLAS_STATUS_ALLOC_FAILED:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
