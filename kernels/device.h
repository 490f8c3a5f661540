#pragma once
// Where ops run. The CPU device is a pool of pinned threads, and an op is done when its call returns. A CUDA
// device is a stream on which ops are queued.
//
// A Device is owned by the worker and used by one thread at a time (the runner), but for pinned memory. A
// Device owns threads or streams, but no memory: SetWorkspace lends the scratch that ops need, and the caller
// keeps owning the scratch.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace somnus {

struct OpTable;

enum class DeviceKind { kCpu, kCuda };

// Instruction sets of the CPU backend. Results of different instruction sets differ in the last bits; each is
// batch invariant.
enum class CpuIsa {
  kBest,
  // x86-64
  kPortable,
  kAvx2,
  kAvxVnni,
  kAvx512,
  kAvx512Vnni,
  kAvx512Bf16,
  kAmx,
  // aarch64
  kNeon,
  kNeonDotprod,
  kNeonBf16
};
// The instruction sets that have kernels in this build, in ascending order of quality; every CPU has the
// first.
#if defined(__aarch64__)
inline constexpr CpuIsa kCpuIsas[] = {CpuIsa::kNeon, CpuIsa::kNeonDotprod, CpuIsa::kNeonBf16};
#else
inline constexpr CpuIsa kCpuIsas[] = {CpuIsa::kPortable, CpuIsa::kAvx2,       CpuIsa::kAvxVnni,
                                      CpuIsa::kAvx512,   CpuIsa::kAvx512Vnni, CpuIsa::kAvx512Bf16,
                                      CpuIsa::kAmx};
#endif
// "avx512_bf16", as in SOMNUS_CPU_ISA; "best" for kBest.
absl::string_view CpuIsaName(CpuIsa isa);
// The name of the instruction set that kBest stands for in this process; errors as of Device::CreateCpu.
absl::StatusOr<std::string> ChosenCpuIsaName();

struct CpuDeviceOptions {
  int num_threads = 0;  // 0: as many as the process may use
  int first_cpu = -1;   // pin thread i to the (first_cpu + i)-th allowed CPU; -1: do not pin
  // The speed of each thread's core relative to the fastest core: num_threads values in (0, 1]. The threads'
  // shares of every op are in proportion; results do not depend on the shares. Empty: all threads are alike.
  std::vector<double> thread_speeds = {};
  bool spin = true;  // threads spin briefly between ops of a step; off when there are more threads than CPUs
  // kBest: the instruction set that the environment variable SOMNUS_CPU_ISA names (CpuIsaName), or else the
  // best of the CPU.
  CpuIsa isa = CpuIsa::kBest;
};

// A point in a device's queue. Made by Device::CreateEvent; the device must outlive the event.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Moves the point behind everything that is queued so far. May be called any number of times.
  virtual void Record() = 0;
  // Waits until the device has passed the point of the last Record. May be called from any thread while the
  // device's own goes on queueing.
  virtual absl::Status Wait() = 0;
};

// Ops that were recorded once and are queued again by a single call: with the same pointers, on the data at
// these addresses at that time.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void Launch() = 0;
};

// Copies many bytes to an asynchronous device: a bounded set of pinned host buffers, filled by any number of
// threads, each emptied by an asynchronous copy while others are filled. Copies are in no order with the ops.
// Buffers are allocated on demand and then kept: freeing pinned memory may wait for everything on the device,
// and so for work that waits for this thread. Thread safe.
class DeviceUploader {
 public:
  // buffer_bytes() of host memory, aligned to 64 bytes. Belongs to the thread that acquired the buffer until
  // Send.
  struct Buffer {
    char* data = nullptr;
  };

  virtual ~DeviceUploader() = default;
  virtual int64_t buffer_bytes() const = 0;
  // Returns a buffer with no copy under way; waits while there is none. After a failed copy Acquire returns
  // the copy's error, until Wait() has returned the error.
  virtual absl::StatusOr<Buffer*> Acquire() = 0;
  // Queues the copy of the buffer's first `bytes` bytes to `device`, and gives the buffer back; with 0 bytes
  // Send only gives the buffer back. `what` names the bytes in an error, which Acquire and Wait return.
  virtual void Send(Buffer* buffer, void* device, int64_t bytes, absl::string_view what) = 0;
  // Waits until all sent bytes are on the device. Returns the first error since the last call.
  virtual absl::Status Wait() = 0;
};

// Calls of a thread to devices since it started: the host's part of a step's time.
struct HostCalls {
  // Waits for the device, and allocations and frees of pinned memory, which may wait for the device.
  int64_t waits = 0;
  int64_t copies_to_device = 0;
  int64_t copies_to_host = 0;
  int64_t graph_launches = 0;
};

class Device {
 public:
  // InvalidArgument for options out of range, FailedPrecondition for an instruction set that this CPU lacks.
  static absl::StatusOr<std::unique_ptr<Device>> CreateCpu(const CpuDeviceOptions& options);
  // Unavailable, with the reason, without CUDA in this build, without a driver, a GPU or code for its chip;
  // FailedPrecondition for a driver that is too old; InvalidArgument for a nonexistent index, and for a word
  // in SOMNUS_CUDA_DISABLE that is no switch.
  static absl::StatusOr<std::unique_ptr<Device>> CreateCuda(int index);
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  // This device's implementation of ops.h.
  virtual const OpTable& ops() const = 0;
  // For people: "cpu, 2 threads, avx512_bf16".
  virtual std::string Describe() const = 0;

  // Lends scratch for ops: at least OpsWorkspaceBytes(limits) of ops.h, aligned to 64 bytes (256 on CUDA).
  // Replaces the former scratch.
  virtual void SetWorkspace(void* data, int64_t bytes) = 0;

  // When true, from the next op on a row of a batch has the same bits in any batch, chunk or place, for some
  // loss of speed. A CPU device always works this way. To be called before graphs are captured.
  virtual void SetBatchInvariant(bool batch_invariant) {}

  // Bracket a step: between BeginStep and EndStep the CPU threads stay awake (spinning), outside they block
  // and use no CPU time.
  virtual void BeginStep() = 0;
  virtual void EndStep() = 0;
  // The calling thread may run on any CPU of the process again, until the next BeginStep.
  virtual void UnpinCaller() {}

  // True when ops are queued and run later, on memory of the device's own: only copies move data between the
  // device's memory and the host's. False: every op is done when its call returns, and both memories are one.
  virtual bool asynchronous() const = 0;

  // Allocates host memory, aligned to 64 bytes, for the fastest copies, which are asynchronous.
  // ResourceExhausted without memory. AllocatePinned and FreePinned are for any thread, also while the runner
  // queues ops.
  virtual absl::StatusOr<void*> AllocatePinned(int64_t bytes) = 0;
  virtual void FreePinned(void* data) = 0;

  // Owned by the device; nullptr where both memories are one.
  virtual DeviceUploader* uploader() = 0;

  virtual absl::StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() = 0;

  // Between BeginCapture and EndCapture ops are recorded instead of run. Unimplemented where there are no
  // graphs. A graph holds device memory until destruction, and has all of this memory by the time that
  // EndCapture returns: ResourceExhausted where the device has no memory left. After an error of EndCapture
  // nothing is being recorded any more.
  virtual absl::Status BeginCapture() = 0;
  virtual absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture() = 0;

  // Queue a copy between host memory and the device's, in order with the ops; 0 bytes are no copy. `host`
  // must stay valid and unchanged until Synchronize(); a copy from pageable memory may block.
  virtual void CopyToDevice(void* device, const void* host, int64_t bytes) = 0;
  virtual void CopyToHost(void* host, const void* device, int64_t bytes) = 0;

  // Copies from memory of another process on a GPU of this host to host memory, and blocks. `handle`: the
  // cudaIpcMemHandle_t of the allocation, in which `offset` is. InvalidArgument: there is no such memory.
  // FailedPrecondition: this device is no GPU.
  virtual absl::Status CopyFromProcess(absl::string_view handle, int64_t offset, int64_t bytes, void* host) {
    return absl::FailedPreconditionError("only a rank on a GPU can open another process's memory on one");
  }

  // Waits for everything queued. Returns the first error of any op since the last call.
  virtual absl::Status Synchronize() = 0;

  // The calling thread's calls to methods of Device, of events and of graphs. All 0 where nothing is queued.
  virtual HostCalls CallsOfThisThread() const { return {}; }

  // Ops that are queued from here on run after all swaps that were queued (SwapBlocks of ops.h). The host
  // does not wait. Not within a capture.
  virtual void AwaitSwaps() {}
};

}  // namespace somnus
