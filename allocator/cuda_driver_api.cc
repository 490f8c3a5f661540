#include "allocator/cuda_driver_api.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

#define SOMNUS_STRING_INNER(x) #x
#define SOMNUS_STRING(x) SOMNUS_STRING_INNER(x)

absl::StatusOr<CudaDriverApi> Resolve() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return absl::UnavailableError(absl::StrCat("there is no CUDA driver: ", reason == nullptr ? "" : reason));
  }
  CudaDriverApi api;
#define SOMNUS_CUDA_RESOLVE(name)                                                                 \
  api.name##_fn = reinterpret_cast<decltype(api.name##_fn)>(dlsym(library, SOMNUS_STRING(name))); \
  if (api.name##_fn == nullptr) {                                                                 \
    return absl::UnavailableError("the CUDA driver is too old: it has no " SOMNUS_STRING(name));  \
  }
  SOMNUS_CUDA_ENTRY_POINTS(SOMNUS_CUDA_RESOLVE)
#undef SOMNUS_CUDA_RESOLVE
  const CUresult result = api.cuInit_fn(0);
  if (result != CUDA_SUCCESS) {
    const char* name = nullptr;
    api.cuGetErrorName_fn(result, &name);
    return absl::UnavailableError(
        absl::StrCat("the CUDA driver does not start: ", name == nullptr ? "?" : name));
  }
  return api;
}

}  // namespace

absl::StatusOr<const CudaDriverApi*> CudaDriverApi::Load() {
  static const auto* const api = new absl::StatusOr<CudaDriverApi>(Resolve());
  if (!api->ok()) return api->status();
  return &**api;
}

}  // namespace somnus
