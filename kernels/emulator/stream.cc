// Streams, events and launches of runtime.h.

#include <chrono>

#include "kernels/emulator/grid.h"
#include "kernels/emulator/host_calls.h"
#include "kernels/emulator/launched_kernels.h"
#include "kernels/emulator/runtime_state.h"

namespace somnus::cuda_emulated {

using emulator::Capture;
using emulator::Event;
using emulator::Op;
using emulator::Return;
using emulator::Runtime;
using emulator::Stream;
using emulator::Ticket;

namespace {

constexpr int64_t kMaxThreads = 1024;
constexpr int64_t kDefaultSharedBytes = 48 << 10;
constexpr int64_t kMaxSharedBytes = 227 << 10;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A call that waits for `stream`: not during a capture of the stream.
cudaError_t CheckMayWait(const std::shared_ptr<Stream>& stream) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (stream->capture == nullptr) return cudaSuccess;
  stream->capture->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t CheckLaunch(const emulator::KernelLaunch& launch) {
  const dim3 &g = launch.grid, &b = launch.block;
  const int64_t threads = int64_t{b.x} * b.y * b.z;
  if (g.x < 1 || g.y < 1 || g.z < 1 || g.x > 0x7fffffff || g.y > 65535 || g.z > 65535)
    return cudaErrorInvalidConfiguration;
  if (threads < 1 || threads > kMaxThreads || b.x > 1024 || b.y > 1024 || b.z > 64)
    return cudaErrorInvalidConfiguration;
  Runtime& runtime = Runtime::Get();
  const auto opted = runtime.opted_shared_bytes.find(launch.function);
  const int64_t limit = opted == runtime.opted_shared_bytes.end() ? kDefaultSharedBytes : opted->second;
  if (launch.shared_bytes < 0 || launch.shared_bytes > limit) return cudaErrorInvalidValue;
  return cudaSuccess;
}

}  // namespace

// ---- Kernels

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (function == nullptr || attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      value > kMaxSharedBytes) {
    return Return(cudaErrorInvalidValue);
  }
  const Runtime::Lock lock = Runtime::Get().Acquire();
  Runtime::Get().opted_shared_bytes[function] = value;
  return cudaSuccess;
}

cudaError_t EmulatedLaunch(emulator::KernelLaunch launch, cudaStream_t handle) {
  Runtime& runtime = Runtime::Get();
  Runtime::Lock lock = runtime.Acquire();
  const std::shared_ptr<Stream> stream = runtime.Find(handle);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = CheckLaunch(launch); error != cudaSuccess) return Return(error);
  emulator::NoteLaunch(launch.function);
  Op op;
  op.kernel = std::make_shared<const emulator::KernelLaunch>(std::move(launch));
  return Return(runtime.Enqueue(lock, stream, std::move(op)));
}

// ---- Streams

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (stream == nullptr || flags > cudaStreamNonBlocking) return Return(cudaErrorInvalidValue);
  const Runtime::Lock lock = Runtime::Get().Acquire();
  *stream = Runtime::Get().AddStream(flags != cudaStreamNonBlocking).get();
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  ++emulator::CallsOfThisThread().waits;
  Runtime& runtime = Runtime::Get();
  Runtime::Lock lock = runtime.Acquire();
  const std::shared_ptr<Stream> stream = handle == nullptr ? nullptr : runtime.Find(handle);
  if (const cudaError_t error = CheckMayWait(stream); error != cudaSuccess) return Return(error);
  runtime.RunUpTo(lock, runtime.TailOf(stream));
  runtime.RemoveStream(handle);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  ++emulator::CallsOfThisThread().waits;
  Runtime& runtime = Runtime::Get();
  Runtime::Lock lock = runtime.Acquire();
  const std::shared_ptr<Stream> stream = runtime.Find(handle);
  if (const cudaError_t error = CheckMayWait(stream); error != cudaSuccess) return Return(error);
  runtime.RunUpTo(lock, runtime.TailOf(stream));
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  Runtime& runtime = Runtime::Get();
  Runtime::Lock lock = runtime.Acquire();
  const std::shared_ptr<Stream> stream = runtime.Find(handle);
  if (const cudaError_t error = CheckMayWait(stream); error != cudaSuccess) return Return(error);
  const Ticket tail = runtime.TailOf(stream);
  if (emulator::Done(tail)) return cudaSuccess;
  if (!stream->running) runtime.RunUpTo(lock, {stream, stream->done + 1});
  return emulator::Done(tail) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize() {
  ++emulator::CallsOfThisThread().waits;
  Runtime& runtime = Runtime::Get();
  Runtime::Lock lock = runtime.Acquire();
  if (const cudaError_t error = runtime.CheckNotCapturing(); error != cudaSuccess) return Return(error);
  runtime.RunAll(lock);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t fn, void* data) {
  Runtime& runtime = Runtime::Get();
  Runtime::Lock lock = runtime.Acquire();
  const std::shared_ptr<Stream> stream = runtime.Find(handle);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (fn == nullptr) return Return(cudaErrorInvalidValue);
  Op op;
  op.run = [fn, data] { fn(data); };
  return Return(runtime.Enqueue(lock, stream, std::move(op)));
}

// ---- Events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  if (event == nullptr) return Return(cudaErrorInvalidValue);
  *event = new Event;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event == nullptr) return Return(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  Runtime& runtime = Runtime::Get();
  Runtime::Lock lock = runtime.Acquire();
  const std::shared_ptr<Stream> stream = runtime.Find(handle);
  if (stream == nullptr || event == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) {
    if (stream->capture->invalid) return Return(cudaErrorStreamCaptureInvalidated);
    event->capture_id = stream->capture->id;
    event->capture_tail = stream->capture_tail;
    return cudaSuccess;
  }
  event->capture_id = 0;
  Op op;
  op.run = [time = event->time_ns] { *time = NowNs(); };
  event->ticket = {stream, stream->queued + 1};
  return Return(runtime.Enqueue(lock, stream, std::move(op)));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  Runtime& runtime = Runtime::Get();
  Runtime::Lock lock = runtime.Acquire();
  const std::shared_ptr<Stream> stream = runtime.Find(handle);
  if (stream == nullptr || event == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (event->capture_id != 0) {
    const auto it = runtime.captures().find(event->capture_id);
    // Only streams of the capture can wait for events in the capture, and waiting makes a stream part of the
    // capture.
    if (it == runtime.captures().end()) return Return(cudaErrorInvalidValue);
    Capture* const capture = it->second.get();
    if (stream->capture != nullptr && stream->capture != capture) return Return(cudaErrorStreamCaptureMerge);
    if (stream->capture == nullptr) {
      stream->capture = capture;
      stream->capture_tail.clear();
      capture->streams.push_back(stream.get());
    }
    stream->capture_tail.insert(stream->capture_tail.end(), event->capture_tail.begin(),
                                event->capture_tail.end());
    return cudaSuccess;
  }
  if (stream->capture != nullptr) {
    stream->capture->invalid = true;
    return Return(cudaErrorStreamCaptureIsolation);
  }
  Op op;
  op.waits.push_back(event->ticket);
  return Return(runtime.Enqueue(lock, stream, std::move(op)));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ++emulator::CallsOfThisThread().waits;
  if (event == nullptr) return Return(cudaErrorInvalidResourceHandle);
  Runtime::Lock lock = Runtime::Get().Acquire();
  if (event->capture_id != 0) return Return(cudaErrorCapturedEvent);
  const Ticket ticket = event->ticket;
  Runtime::Get().RunUpTo(lock, ticket);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event == nullptr) return Return(cudaErrorInvalidResourceHandle);
  Runtime::Lock lock = Runtime::Get().Acquire();
  if (event->capture_id != 0) return Return(cudaErrorCapturedEvent);
  const Ticket ticket = event->ticket;
  if (emulator::Done(ticket)) return cudaSuccess;
  if (!ticket.stream->running) Runtime::Get().RunUpTo(lock, {ticket.stream, ticket.stream->done + 1});
  return emulator::Done(ticket) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  if (ms == nullptr || start == nullptr || end == nullptr) return Return(cudaErrorInvalidValue);
  const Runtime::Lock lock = Runtime::Get().Acquire();
  if (start->ticket.stream == nullptr || end->ticket.stream == nullptr)
    return Return(cudaErrorInvalidResourceHandle);
  if (!emulator::Done(start->ticket) || !emulator::Done(end->ticket)) return cudaErrorNotReady;
  *ms = static_cast<float>(*end->time_ns - *start->time_ns) * 1e-6f;
  return cudaSuccess;
}

}  // namespace somnus::cuda_emulated
