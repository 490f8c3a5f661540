#pragma once
// The entry points of NCCL, found at run time: nothing links against NCCL, and nothing needs NCCL's header,
// so that the same binary starts with or without NCCL and the state machine above is tested through a fake.
// The declarations are the ABI of nccl.h from 2.18 on; nccl_abi_check.cc compares the declarations with the
// header where the header is installed.

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace somnus {
namespace nccl {

enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};
enum ElementType : int { kInt8 = 0, kFloat16 = 6, kFloat32 = 7, kBfloat16 = 9 };
enum ReduceOp : int { kSum = 0 };

constexpr int kSuspendMemory = 1;
constexpr int kUndefined = -2147483647 - 1;
constexpr unsigned kConfigMagic = 0xcafebeef;
// The version of the Config below. Newer libraries accept older versions, and fill in the rest.
constexpr int kConfigVersion = 21800;

struct UniqueId {
  char bytes[128];
};
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = kConfigMagic;
  unsigned version = kConfigVersion;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
};

struct OpaqueComm;
using Comm = OpaqueComm*;
using Stream = void*;  // cudaStream_t

}  // namespace nccl

#define SOMNUS_NCCL_ENTRY_POINTS(X)                                                                    \
  X(ncclGetVersion, nccl::Result (*)(int*))                                                            \
  X(ncclGetUniqueId, nccl::Result (*)(nccl::UniqueId*))                                                \
  X(ncclCommInitRankConfig, nccl::Result (*)(nccl::Comm*, int, nccl::UniqueId, int, nccl::Config*))    \
  X(ncclCommSplit, nccl::Result (*)(nccl::Comm, int, int, nccl::Comm*, nccl::Config*))                 \
  X(ncclCommFinalize, nccl::Result (*)(nccl::Comm))                                                    \
  X(ncclCommDestroy, nccl::Result (*)(nccl::Comm))                                                     \
  X(ncclCommAbort, nccl::Result (*)(nccl::Comm))                                                       \
  X(ncclCommGetAsyncError, nccl::Result (*)(nccl::Comm, nccl::Result*))                                \
  X(ncclGetErrorString, const char* (*)(nccl::Result))                                                 \
  X(ncclGetLastError, const char* (*)(nccl::Comm))                                                     \
  X(ncclAllReduce, nccl::Result (*)(const void*, void*, size_t, nccl::ElementType, nccl::ReduceOp,     \
                                    nccl::Comm, nccl::Stream))                                         \
  X(ncclAllGather,                                                                                     \
    nccl::Result (*)(const void*, void*, size_t, nccl::ElementType, nccl::Comm, nccl::Stream))         \
  X(ncclSend, nccl::Result (*)(const void*, size_t, nccl::ElementType, int, nccl::Comm, nccl::Stream)) \
  X(ncclRecv, nccl::Result (*)(void*, size_t, nccl::ElementType, int, nccl::Comm, nccl::Stream))

// From 2.29.7 on; nullptr before.
#define SOMNUS_NCCL_OPTIONAL_ENTRY_POINTS(X)            \
  X(ncclCommSuspend, nccl::Result (*)(nccl::Comm, int)) \
  X(ncclCommResume, nccl::Result (*)(nccl::Comm))

struct NcclApi {
#define SOMNUS_NCCL_MEMBER(name, ...) \
  using name##_t = __VA_ARGS__;       \
  name##_t name = nullptr;
  SOMNUS_NCCL_ENTRY_POINTS(SOMNUS_NCCL_MEMBER)
  SOMNUS_NCCL_OPTIONAL_ENTRY_POINTS(SOMNUS_NCCL_MEMBER)
#undef SOMNUS_NCCL_MEMBER
  int version = 0;  // 22809 for 2.28.9

  // Loaded once per process and never unloaded. Unavailable names the missing part; FailedPrecondition: main
  // has not called SetNcclEnvironment.
  static absl::StatusOr<const NcclApi*> Load();
};

// Sets the variables that NCCL must find in the environment. To be called by main, before there are threads:
// threads may read the environment, which must not change meanwhile.
void SetNcclEnvironment();

// Makes the 128 bytes that rank 0 hands to all ranks. NCCL listens for the ranks in this process from now on.
absl::StatusOr<std::string> MakeNcclUniqueId(const NcclApi& api);

}  // namespace somnus
