#pragma once
// The emulator's version of the CUDA runtime API, for code that includes CUDA through kernels/cuda_api.h: the
// part that Somnus uses, with the semantics that CUDA documents where a program could get them wrong:
//
// - Work queued on a stream runs at the latest moment that the order of ops demands: when someone waits (a
//   synchronize, a blocking copy, a free), on that host thread. So a missing wait shows as stale data. Pinned
//   host memory is read and written then, too; pageable sources are read by the call, and a copy to pageable
//   memory waits, as documented for CUDA. Options::eager turns deferring off.
// - Streams wait for each other by events only. The legacy default stream is the exception: the default
//   stream waits for all blocking streams, and vice versa.
// - Captures become graphs; kernel arguments are copied by value then, and the memory that they point at is
//   read at each launch; calls that a capture forbids fail and invalidate it.
// - Pointers given as the device's or as pinned must be, and ranges must lie within an allocation.
// - Device memory is host memory, exactly as long as asked (address sanitizer sees accesses beyond the end),
//   full
//   of NaNs at first.
// - Launches that an H100 refuses are refused. Errors of a queued op are fatal here: the emulator aborts with
//   a message.
// - A kernel with programmatic dependent launch mostly starts as early as allowed: a missing
//   GridDependencyWait shows.
// - Kernels that have to run at the same time (kernels of several host threads or of several streams that
//   spin on each other) do: while a kernel only spins, other streams' work starts beside that kernel.
//
// Not emulated: the memory model (a store is seen at once, by all), bank conflicts, registers, races between
// two threads' accesses where neither thread gives way, time. Device pointers can be dereferenced by host
// code, and a kernel may dereference pageable host memory.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/emulator/device.h"
#include "kernels/emulator/vector_types.h"

namespace somnus::cuda_emulated {

// Values as in CUDA.
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorDeviceUninitialized = 201,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorStreamCaptureMerge = 902,
  cudaErrorStreamCaptureUnmatched = 903,
  cudaErrorStreamCaptureUnjoined = 904,
  cudaErrorStreamCaptureIsolation = 905,
  cudaErrorStreamCaptureImplicit = 906,
  cudaErrorCapturedEvent = 907,
  cudaErrorUnknown = 999,
};
const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
// The last error of a call of this host thread, which this clears.
cudaError_t cudaGetLastError();

// ---- Devices

enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrL2CacheSize = 38,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
enum cudaDeviceP2PAttr {
  cudaDevP2PAttrPerformanceRank = 1,
  cudaDevP2PAttrNativeAtomicSupported = 3,
};
struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  size_t sharedMemPerBlockOptin;
  size_t sharedMemPerMultiprocessor;
  int l2CacheSize;
  int multiProcessorCount;
  int maxThreadsPerMultiProcessor;
  int major;
  int minor;
};
namespace emulator {
inline constexpr int kRuntimeVersion = 13000;
}
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
// The devices must differ.
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int from, int to);
// cudaErrorInsufficientDriver where the driver's major version is older than the runtime's.
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);

// ---- Memory

enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4,
};
enum cudaMemoryType {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2,
};
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
  void* devicePointer;
  void* hostPointer;
};
constexpr unsigned cudaHostAllocPortable = 1;
constexpr unsigned cudaHostAllocMapped = 2;

cudaError_t cudaMallocBytes(void** pointer, size_t bytes);
template <typename T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
  return cudaMallocBytes(reinterpret_cast<void**>(pointer), bytes);
}
cudaError_t cudaFree(void* pointer);
cudaError_t cudaHostAllocBytes(void** pointer, size_t bytes);
template <typename T>
cudaError_t cudaHostAlloc(T** pointer, size_t bytes, unsigned) {
  return cudaHostAllocBytes(reinterpret_cast<void**>(pointer), bytes);
}
template <typename T>
cudaError_t cudaMallocHost(T** pointer, size_t bytes) {
  return cudaHostAllocBytes(reinterpret_cast<void**>(pointer), bytes);
}
cudaError_t cudaFreeHost(void* pointer);
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer);

struct cudaIpcMemHandle_t {
  char reserved[64];
};
constexpr unsigned cudaIpcMemLazyEnablePeerAccess = 1;
// Among processes, for memory of whole pages of 2 MiB (ipc.cc). cudaErrorDeviceUninitialized in the exporting
// process, as on a real device.
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer);
cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void* pointer);

// ---- Streams, events

namespace emulator {
struct Stream;
struct Event;
struct Graph;
struct GraphExec;

// A kernel with arguments, ready to be run by every thread of a grid.
struct KernelLaunch {
  dim3 grid;
  dim3 block;
  int64_t shared_bytes = 0;
  bool overlaps_previous = false;  // programmatic dependent launch
  const void* function = nullptr;  // names the kernel in messages
  std::function<void()> body;
};
}  // namespace emulator

using cudaStream_t = emulator::Stream*;
using cudaEvent_t = emulator::Event*;
using cudaGraph_t = emulator::Graph*;
using cudaGraphExec_t = emulator::GraphExec*;
using cudaHostFn_t = void (*)(void*);

cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);
cudaError_t cudaMemset(void* pointer, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream = nullptr);

constexpr unsigned cudaStreamDefault = 0;
constexpr unsigned cudaStreamNonBlocking = 1;
cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
// Runs one queued op (a real device works by itself), then returns the state.
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void* data);

constexpr unsigned cudaEventDefault = 0;
constexpr unsigned cudaEventBlockingSync = 1;
constexpr unsigned cudaEventDisableTiming = 2;
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end);

// ---- Graphs

enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2,
};
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2,
};
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
struct GraphNode;
using cudaGraphNode_t = GraphNode*;
// Returns the count alone: nodes must be nullptr.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags = 0);
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

// ---- Kernels

enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
};
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value);
// kernels/cuda/launch.h calls this function instead of cudaLaunchKernelExC.
cudaError_t EmulatedLaunch(emulator::KernelLaunch launch, cudaStream_t stream);

}  // namespace somnus::cuda_emulated
