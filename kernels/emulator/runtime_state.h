#pragma once
// The state behind runtime.h: streams as queues of ops, events as places in these queues, captures, and
// allocations. There is one state for the process, under one mutex, which is not held while an op runs.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/emulator/host_calls.h"
#include "kernels/emulator/options.h"
#include "kernels/emulator/runtime.h"

namespace somnus::cuda_emulated::emulator {

// The first `number` ops of a stream.
struct Ticket {
  std::shared_ptr<Stream> stream;
  uint64_t number = 0;
};

struct Op {
  // Either kernel or run is set; neither: the op is only a place in the queue.
  std::shared_ptr<const KernelLaunch> kernel;
  std::function<void()> run;
  std::vector<Ticket> waits;
};

struct Graph {
  struct Node {
    Op op;
    std::vector<int> after;
  };
  std::vector<Node> nodes;
};

struct Capture {
  uint64_t id = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  Stream* origin = nullptr;
  bool invalid = false;
  Graph graph;
  std::vector<Stream*> streams;  // that take part, the origin first
};

struct Stream {
  int device = 0;
  bool blocking = true;  // with the legacy default stream
  bool legacy = false;
  std::deque<Op> queue;  // not started
  uint64_t queued = 0;   // ops ever queued
  uint64_t done = 0;     // ops that have finished
  bool running = false;  // a host thread is at the op `done` + 1
  Capture* capture = nullptr;
  std::vector<int> capture_tail;  // nodes that the next node follows
};

struct Event {
  Ticket ticket;
  std::shared_ptr<int64_t> time_ns = std::make_shared<int64_t>(0);  // of the last record that was run
  uint64_t capture_id = 0;                                          // recorded in this capture; 0: not in one
  std::vector<int> capture_tail;
};

enum class MemoryKind { kDevice, kPinned, kAdopted, kImported };
struct Allocation {
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  int device = 0;
  int fd = -1;         // of the allocation's memory file, which other processes can map; -1: no file
  uint64_t inode = 0;  // imported: of the exporter's file
  int opened = 0;      // imported: times
};

// Device memory of whole pages of this size is a file in memory (ipc.cc), as a GPU's memory has pages of its
// own: a smaller allocation shares a page with other allocations, and cannot be shown to other processes
// here.
constexpr size_t kIpcPageBytes = size_t{2} << 20;
// nullptr when there is no memory. A page behind the memory faults.
void* MapShared(size_t bytes, int* fd);
void UnmapShared(void* data, size_t bytes, int fd);

class Runtime {
 public:
  static Runtime& Get();
  using Lock = std::unique_lock<std::mutex>;
  Lock Acquire() { return Lock(mutex_); }

  // ---- All with the lock held.

  // nullptr for a handle that is none; the legacy stream of the current device for a null handle.
  std::shared_ptr<Stream> Find(cudaStream_t handle);
  std::shared_ptr<Stream> AddStream(bool blocking);
  void RemoveStream(Stream* stream) { streams_.erase(stream); }
  // Puts `op` into the stream's queue or capture. When eager, releases the lock while the op runs.
  cudaError_t Enqueue(Lock& lock, const std::shared_ptr<Stream>& stream, Op op);
  // Returns when the first `number` ops of the stream are done, running all needed ops here.
  void RunUpTo(Lock& lock, const Ticket& ticket);
  void RunAll(Lock& lock);  // of the current device
  Ticket TailOf(const std::shared_ptr<Stream>& stream) { return {stream, stream->queued}; }

  // Success, unless a capture of this host thread (or a global capture of any host thread) forbids calls that
  // may wait or allocate; invalidates it.
  cudaError_t CheckNotCapturing();
  std::map<uint64_t, std::unique_ptr<Capture>>& captures() { return captures_; }
  uint64_t NextId() { return ++last_id_; }

  std::map<uintptr_t, Allocation>& memory() { return memory_; }
  // The allocation in which p lies; end() when in none.
  std::map<uintptr_t, Allocation>::iterator AllocationOf(const void* p);

  Options options;
  // Returns false, and takes nothing, when the device has not as much left.
  bool TakeBytes(int64_t bytes) {
    if (bytes > options.device_bytes - device_bytes_used) return false;
    device_bytes_used += bytes;
    return true;
  }

  std::map<const void*, int64_t> opted_shared_bytes;  // by kernel
  int64_t device_bytes_used = 0;
  GraphCalls graph_calls;

  // ---- Without the lock.

  // Takes an op that could start now from any stream that no host thread is at. False when there is none.
  bool ClaimReady(std::shared_ptr<Stream>* stream, Op* op);
  // The next op of a stream whose running kernel allows the start, if that op is a kernel that may overlap.
  bool ClaimOverlapping(Stream* stream, Op* op);
  // `more`: the host thread still runs an op of the stream.
  void Finish(Stream* stream, bool more);
  // Runs a claimed op, and further ops while the claimed op only spins; finishes each.
  void Execute(std::shared_ptr<Stream> stream, Op op);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Stream*, std::shared_ptr<Stream>> streams_;
  std::map<int, std::shared_ptr<Stream>> legacy_;  // by device
  std::map<uint64_t, std::unique_ptr<Capture>> captures_;
  std::map<uintptr_t, Allocation> memory_;
  uint64_t last_id_ = 0;
};

// Keeps an error for cudaGetLastError of this host thread; ignores success.
cudaError_t Return(cudaError_t error);
int CurrentDevice();
bool Done(const Ticket& ticket);

}  // namespace somnus::cuda_emulated::emulator
