#pragma once
// Where ops run. CPU: a pool of pinned threads, every op done when its call returns. CUDA: a stream, ops are
// queued.
//
// A Device is owned by the worker and used by one thread at a time (the runner). It owns threads or streams,
// but no memory: scratch that ops need is lent to it by SetWorkspace and stays the lender's.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace somnus {

struct OpTable;

enum class DeviceKind { kCpu, kCuda };

// Instruction sets of the CPU backend. Results of different ones differ in the last bits; each is batch
// invariant.
enum class CpuIsa { kBest, kPortable, kAvx2, kAvx512Bf16 };

struct CpuDeviceOptions {
  int num_threads = 0;  // 0: as many as the process may use
  int first_cpu = -1;   // pin thread i to the (first_cpu + i)-th allowed CPU; -1: do not pin
  bool spin = true;  // threads spin briefly between ops of a step; off when there are more threads than CPUs
  // kBest: what the environment's SOMNUS_CPU_ISA says (portable, avx2, avx512_bf16), else the best that the
  // CPU has.
  CpuIsa isa = CpuIsa::kBest;
};

// A point in a device's queue. Made by Device::CreateEvent, which must outlive it.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Behind everything queued so far; again and again.
  virtual void Record() = 0;
  // Until the device has passed the last Record. From any thread, while the device's own goes on queueing.
  virtual absl::Status Wait() = 0;
};

// Ops that were queued once and can be queued again by one call: the same pointers, whatever is there by
// then.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void Launch() = 0;
};

// A fast way for many bytes onto an asynchronous device: a bounded set of pinned host buffers, filled by any
// number of threads, each emptied by an asynchronous copy while others are filled. Copies are in no order
// with the ops. Buffers are made when they are needed and kept for the next time: to free pinned memory may
// wait for everything on the device, also for what waits for this thread. Thread safe.
class DeviceUploader {
 public:
  // buffer_bytes() of host memory, aligned to 64: its acquirer's alone until it is sent.
  struct Buffer {
    char* data = nullptr;
  };

  virtual ~DeviceUploader() = default;
  virtual int64_t buffer_bytes() const = 0;
  // A buffer whose last copy is done; waits while there is none. After a copy failed: that error, until
  // Wait() has answered it.
  virtual absl::StatusOr<Buffer*> Acquire() = 0;
  // Queues the copy of the buffer's first `bytes` bytes to `device`, and gives the buffer back; 0: only that.
  // `what` names them in an error, which Acquire and Wait answer.
  virtual void Send(Buffer* buffer, void* device, int64_t bytes, absl::string_view what) = 0;
  // Until all that was sent is on the device; the first error since the last call.
  virtual absl::Status Wait() = 0;
};

// What a thread has asked of devices since it started: the host's part of a step's time.
struct HostCalls {
  int64_t waits = 0;  // until the device is somewhere; and pinned memory's coming and going, which may wait
  int64_t copies_to_device = 0;
  int64_t copies_to_host = 0;
  int64_t graph_launches = 0;
};

class Device {
 public:
  // InvalidArgument for options out of range, FailedPrecondition for an instruction set that this CPU lacks.
  static absl::StatusOr<std::unique_ptr<Device>> CreateCpu(const CpuDeviceOptions& options);
  // Unavailable, with the reason, without CUDA in this build, without a driver, a GPU or code for its chip;
  // InvalidArgument for an index that is not there.
  static absl::StatusOr<std::unique_ptr<Device>> CreateCuda(int index);
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  // This device's implementation of ops.h.
  virtual const OpTable& ops() const = 0;
  // For people: "cpu, 2 threads, avx512_bf16".
  virtual std::string Describe() const = 0;

  // Scratch for ops; at least OpsWorkspaceBytes(limits) of ops.h. 64-byte aligned. Replaces the former one.
  virtual void SetWorkspace(void* data, int64_t bytes) = 0;

  // From the next op on: a row of a batch is bit for bit what it is in any other batch, chunk or place, for
  // some loss of speed. A CPU device is never otherwise. Before graphs are captured.
  virtual void SetBatchInvariant(bool batch_invariant) {}

  // Brackets a step: between them the CPU threads stay awake (spinning), outside they block and burn nothing.
  virtual void BeginStep() = 0;
  virtual void EndStep() = 0;

  // True when ops are queued and run later, on memory of the device's own: only copies move data between it
  // and the host's. False: every op is done when its call returns, and both memories are one.
  virtual bool asynchronous() const = 0;

  // Host memory that copies run fastest from and to, and asynchronously; aligned to 64 bytes.
  virtual absl::StatusOr<void*> AllocatePinned(int64_t bytes) = 0;
  virtual void FreePinned(void* data) = 0;

  // The device's own; nullptr where both memories are one.
  virtual DeviceUploader* uploader() = 0;

  virtual absl::StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() = 0;

  // Between them ops are recorded instead of run. Unimplemented where there are no graphs. A graph holds
  // memory of the device's as long as it lives, all of it by the time that EndCapture returns:
  // ResourceExhausted where there is none. After an error of EndCapture nothing is being recorded.
  virtual absl::Status BeginCapture() = 0;
  virtual absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture() = 0;

  // Between host memory and the device's, in order with the ops; nothing for 0 bytes. `host` must stay as it
  // is until Synchronize(); a copy from pageable memory may block.
  virtual void CopyToDevice(void* device, const void* host, int64_t bytes) = 0;
  virtual void CopyToHost(void* host, const void* device, int64_t bytes) = 0;

  // Waits for everything queued; the first error of any op since the last call.
  virtual absl::Status Synchronize() = 0;

  // Of the calling thread, by the methods here and those of events and graphs. All 0 where nothing is queued.
  virtual HostCalls CallsOfThisThread() const { return {}; }
};

}  // namespace somnus
