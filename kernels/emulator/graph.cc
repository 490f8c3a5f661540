// Stream capture and graphs of runtime.h.

#include <algorithm>
#include <vector>

#include "kernels/emulator/grid.h"
#include "kernels/emulator/runtime_state.h"

namespace somnus::cuda_emulated {

namespace emulator {

// A copy of a graph. Kernel arguments lie in the ops, by value; the memory that they point at is read at each
// launch.
struct GraphExec {
  Graph graph;
  int64_t device_bytes = 0;
  uint64_t launches = 0;
};

GraphCalls CallsForGraphs() {
  const Runtime::Lock lock = Runtime::Get().Acquire();
  return Runtime::Get().graph_calls;
}

cudaError_t Runtime::CheckNotCapturing() {
  for (auto& [id, capture] : captures_) {
    if (capture->mode == cudaStreamCaptureModeRelaxed) continue;
    if (capture->mode == cudaStreamCaptureModeThreadLocal && capture->thread != std::this_thread::get_id())
      continue;
    capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  return cudaSuccess;
}

}  // namespace emulator

using emulator::Capture;
using emulator::Graph;
using emulator::Op;
using emulator::Return;
using emulator::Runtime;
using emulator::Stream;

namespace {

// Returns whether the origin's tail follows every node, that is, whether all other streams were joined.
bool AllJoined(const Graph& graph, const std::vector<int>& tail) {
  std::vector<bool> seen(graph.nodes.size());
  std::vector<int> open = tail;
  while (!open.empty()) {
    const int node = open.back();
    open.pop_back();
    if (seen[static_cast<size_t>(node)]) continue;
    seen[static_cast<size_t>(node)] = true;
    const std::vector<int>& after = graph.nodes[static_cast<size_t>(node)].after;
    open.insert(open.end(), after.begin(), after.end());
  }
  return std::find(seen.begin(), seen.end(), false) == seen.end();
}

// A drawn order that respects the edges.
std::vector<int> DrawOrder(const Graph& graph, uint64_t seed) {
  emulator::Random random(seed);
  const size_t n = graph.nodes.size();
  std::vector<int> missing(n), ready, order;
  std::vector<std::vector<int>> next(n);
  for (size_t i = 0; i < n; ++i) {
    missing[i] = static_cast<int>(graph.nodes[i].after.size());
    for (const int before : graph.nodes[i].after)
      next[static_cast<size_t>(before)].push_back(static_cast<int>(i));
    if (missing[i] == 0) ready.push_back(static_cast<int>(i));
  }
  while (!ready.empty()) {
    std::swap(ready[random.Below(ready.size())], ready.back());
    const int node = ready.back();
    ready.pop_back();
    order.push_back(node);
    for (const int other : next[static_cast<size_t>(node)]) {
      if (--missing[static_cast<size_t>(other)] == 0) ready.push_back(other);
    }
  }
  return order;
}

}  // namespace

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  Runtime& runtime = Runtime::Get();
  const Runtime::Lock lock = runtime.Acquire();
  const std::shared_ptr<Stream> stream = runtime.Find(handle);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (stream->legacy) return Return(cudaErrorStreamCaptureUnsupported);
  if (stream->capture != nullptr) return Return(cudaErrorInvalidValue);
  auto capture = std::make_unique<Capture>();
  capture->id = runtime.NextId();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream.get();
  capture->streams.push_back(stream.get());
  stream->capture = capture.get();
  stream->capture_tail.clear();
  runtime.captures()[capture->id] = std::move(capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  Runtime& runtime = Runtime::Get();
  const Runtime::Lock lock = runtime.Acquire();
  const std::shared_ptr<Stream> stream = runtime.Find(handle);
  if (graph != nullptr) *graph = nullptr;
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  Capture* const capture = stream->capture;
  if (graph == nullptr || capture == nullptr) return Return(cudaErrorInvalidValue);
  if (capture->origin != stream.get()) return Return(cudaErrorStreamCaptureUnmatched);
  const bool joined = AllJoined(capture->graph, stream->capture_tail);
  const bool invalid = capture->invalid;
  for (Stream* const member : capture->streams) {
    member->capture = nullptr;
    member->capture_tail.clear();
  }
  if (!invalid && joined) *graph = new Graph(std::move(capture->graph));
  runtime.captures().erase(capture->id);
  if (invalid) return Return(cudaErrorStreamCaptureInvalidated);
  return joined ? cudaSuccess : Return(cudaErrorStreamCaptureUnjoined);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  Runtime& runtime = Runtime::Get();
  const Runtime::Lock lock = runtime.Acquire();
  const std::shared_ptr<Stream> stream = runtime.Find(handle);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (status == nullptr) return Return(cudaErrorInvalidValue);
  *status = stream->capture == nullptr ? cudaStreamCaptureStatusNone
            : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (graph == nullptr || nodes != nullptr || count == nullptr) return Return(cudaErrorInvalidValue);
  *count = graph->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  if (exec == nullptr || graph == nullptr) return Return(cudaErrorInvalidValue);
  Runtime& runtime = Runtime::Get();
  const Runtime::Lock lock = runtime.Acquire();
  const int64_t bytes = runtime.options.graph_bytes;
  if (!runtime.TakeBytes(bytes)) return Return(cudaErrorMemoryAllocation);
  *exec = new emulator::GraphExec{*graph, bytes};
  ++runtime.graph_calls.instantiations;
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t) {
  return exec == nullptr ? Return(cudaErrorInvalidValue) : cudaSuccess;
}

// The nodes one by one, in a drawn order: nodes that could run at the same time do not, unless a node spins.
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  Runtime& runtime = Runtime::Get();
  Runtime::Lock lock = runtime.Acquire();
  const std::shared_ptr<Stream> stream = runtime.Find(handle);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (exec == nullptr) return Return(cudaErrorInvalidValue);
  ++runtime.graph_calls.launches;
  for (const int node : DrawOrder(exec->graph, runtime.options.seed * 1000003 + exec->launches++)) {
    Op op = exec->graph.nodes[static_cast<size_t>(node)].op;
    const cudaError_t error = runtime.Enqueue(lock, stream, std::move(op));
    if (error != cudaSuccess) return Return(error);
  }
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  if (exec == nullptr) return Return(cudaErrorInvalidValue);
  const Runtime::Lock lock = Runtime::Get().Acquire();
  Runtime::Get().device_bytes_used -= exec->device_bytes;
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (graph == nullptr) return Return(cudaErrorInvalidValue);
  delete graph;
  return cudaSuccess;
}

}  // namespace somnus::cuda_emulated
