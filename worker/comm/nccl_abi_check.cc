// Checks, where the toolkit brings nccl.h, that worker/comm/nccl_api.h declares the same.

#include <nccl.h>

#include <type_traits>

#include "worker/comm/nccl_api.h"

namespace somnus {
namespace {

// The two sides name the types differently, so the number of arguments and all sizes are compared.
template <typename Own, typename Theirs>
struct SameCall : std::false_type {};
template <typename R, typename... A, typename S, typename... B>
struct SameCall<R (*)(A...), S (*)(B...)> {
  static constexpr bool value = sizeof...(A) == sizeof...(B) && sizeof(R) == sizeof(S) && [] {
    if constexpr (sizeof...(A) == sizeof...(B)) {
      return ((sizeof(A) == sizeof(B) && alignof(A) == alignof(B)) && ...);
    }
    return false;
  }();
};

#define SOMNUS_NCCL_SAME(name, ...) static_assert(SameCall<NcclApi::name##_t, decltype(&::name)>::value);
SOMNUS_NCCL_ENTRY_POINTS(SOMNUS_NCCL_SAME)
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 7)
SOMNUS_NCCL_OPTIONAL_ENTRY_POINTS(SOMNUS_NCCL_SAME)
static_assert(nccl::kSuspendMemory == NCCL_SUSPEND_MEM);
#endif

static_assert(static_cast<int>(nccl::kSuccess) == ncclSuccess &&
              static_cast<int>(nccl::kUnhandledCudaError) == ncclUnhandledCudaError &&
              static_cast<int>(nccl::kSystemError) == ncclSystemError &&
              static_cast<int>(nccl::kInternalError) == ncclInternalError &&
              static_cast<int>(nccl::kInvalidArgument) == ncclInvalidArgument &&
              static_cast<int>(nccl::kInvalidUsage) == ncclInvalidUsage &&
              static_cast<int>(nccl::kRemoteError) == ncclRemoteError &&
              static_cast<int>(nccl::kInProgress) == ncclInProgress);
static_assert(static_cast<int>(nccl::kInt8) == ncclInt8 && static_cast<int>(nccl::kFloat16) == ncclFloat16 &&
              static_cast<int>(nccl::kFloat32) == ncclFloat32 &&
              static_cast<int>(nccl::kBfloat16) == ncclBfloat16 && static_cast<int>(nccl::kSum) == ncclSum);
static_assert(sizeof(nccl::UniqueId) == sizeof(ncclUniqueId));

// The header's struct must begin with ours.
static_assert(sizeof(nccl::Config) <= sizeof(ncclConfig_t));
static_assert(offsetof(nccl::Config, magic) == offsetof(ncclConfig_t, magic) &&
              offsetof(nccl::Config, version) == offsetof(ncclConfig_t, version) &&
              offsetof(nccl::Config, blocking) == offsetof(ncclConfig_t, blocking) &&
              offsetof(nccl::Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs) &&
              offsetof(nccl::Config, net_name) == offsetof(ncclConfig_t, netName) &&
              offsetof(nccl::Config, split_share) == offsetof(ncclConfig_t, splitShare));
static_assert(nccl::kUndefined == NCCL_CONFIG_UNDEF_INT && nccl::kConfigVersion == NCCL_VERSION(2, 18, 0));

}  // namespace
}  // namespace somnus
