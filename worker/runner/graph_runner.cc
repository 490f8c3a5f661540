#include "worker/runner/graph_runner.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace somnus {

std::vector<int32_t> DefaultGraphSizes(int32_t max_num_seqs) {
  constexpr int32_t kMost = 512;
  std::vector<int32_t> sizes;
  for (int32_t size : {1, 2, 4}) sizes.push_back(size);
  for (int32_t size = 8; size <= kMost; size += 8) sizes.push_back(size);
  const int32_t limit = std::min(max_num_seqs, kMost);
  std::erase_if(sizes, [limit](int32_t size) { return size > limit; });
  if (sizes.empty() || sizes.back() != limit) sizes.push_back(limit);
  return sizes;
}

namespace {

std::vector<int32_t> BatchSizes(const ModelRunnerOptions& options) {
  // The inputs' arrays have room for no larger batch.
  const int32_t largest = std::min(options.max_num_seqs, options.max_num_batched_tokens);
  std::vector<int32_t> sizes = options.graph_sizes.empty() ? DefaultGraphSizes(largest) : options.graph_sizes;
  std::erase_if(sizes, [largest](int32_t size) { return size < 1 || size > largest; });
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

}  // namespace

GraphRunner::GraphRunner(const ModelRunnerOptions& options, Device* device, const Communicator* communicator)
    : device_(*device),
      communicator_(*communicator),
      enforce_eager_(options.enforce_eager),
      batch_sizes_(BatchSizes(options)) {}

bool GraphRunner::enabled() const {
  const bool queues_all = communicator_.world_size() == 1 || communicator_.stream_ordered();
  return !enforce_eager_ && device_.asynchronous() && queues_all && !batch_sizes_.empty();
}

void GraphRunner::Clear() {
  graphs_.clear();
  deferred_ = false;
}

void GraphRunner::BeginEpoch() {
  graphs_.clear();
  warm_ = false;
  deferred_ = true;
}

absl::StatusOr<GraphReport> GraphRunner::Capture(const Prepare& prepare, const Queue& queue) {
  if (!enabled()) return GraphReport{};
  const auto start = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(CaptureAll(prepare, queue));
  warm_ = true;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const GraphReport report = {static_cast<int>(graphs_.size()), seconds};
  LogInfo("captured {} decode graphs in {:.2f} s", report.count, report.seconds);
  return report;
}

absl::StatusOr<GraphRunner::Graph> GraphRunner::CaptureOne(int32_t size, const Prepare& prepare,
                                                           const Queue& queue) const {
  RETURN_IF_ERROR(prepare(size, !warm_));
  if (!warm_) {
    // Code and plans that load lazily cannot do so while a graph is recorded.
    RETURN_IF_ERROR(queue().status());
    RETURN_IF_ERROR(device_.Synchronize());
  }
  RETURN_IF_ERROR(device_.BeginCapture());
  const absl::StatusOr<TensorView> output = queue();
  absl::StatusOr<std::unique_ptr<DeviceGraph>> graph = device_.EndCapture();
  RETURN_IF_ERROR(output.status());
  RETURN_IF_ERROR(graph.status());
  return Graph{size, *std::move(graph), *output};
}

absl::Status GraphRunner::CaptureAll(const Prepare& prepare, const Queue& queue) {
  graphs_.clear();
  std::vector<int32_t> order = batch_sizes_;
  std::sort(order.begin(), order.end(), std::greater<>());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  std::vector<Graph> graphs;
  for (const int32_t size : order) {
    absl::StatusOr<Graph> graph = CaptureOne(size, prepare, queue);
    if (!graph.ok()) {
      const char* const hint = absl::IsResourceExhausted(graph.status())
                                   ? "; fewer --graph-sizes or --enforce-eager need less memory"
                                   : "";
      return absl::Status(graph.status().code(),
                          absl::StrCat("the decode graph of ", size, " sequences, after ", graphs.size(),
                                       " others: ", graph.status().message(), hint));
    }
    graphs.push_back(*std::move(graph));
  }
  std::reverse(graphs.begin(), graphs.end());
  graphs_ = std::move(graphs);
  return absl::OkStatus();
}

int32_t GraphRunner::PaddedSize(int64_t num_seqs) const {
  const auto it = std::find_if(graphs_.begin(), graphs_.end(),
                               [num_seqs](const Graph& graph) { return graph.size >= num_seqs; });
  return it == graphs_.end() ? 0 : it->size;
}

TensorView GraphRunner::Launch(int32_t size) {
  const auto it =
      std::find_if(graphs_.begin(), graphs_.end(), [size](const Graph& graph) { return graph.size == size; });
  SOMNUS_CHECK(it != graphs_.end());
  it->graph->Launch();
  return it->output;
}

}  // namespace somnus
