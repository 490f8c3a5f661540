#include "worker/runner/graph_runner.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "worker/runner/model_runner.h"

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

absl::StatusOr<GraphRunner::Graph> GraphRunner::CaptureOne(Device* device, int32_t size, bool warm,
                                                           const Prepare& prepare, const Queue& queue) {
  RETURN_IF_ERROR(prepare(size, !warm));
  if (!warm) {
    // Code and plans that load lazily cannot do so while a graph is recorded.
    RETURN_IF_ERROR(queue().status());
    RETURN_IF_ERROR(device->Synchronize());
  }
  RETURN_IF_ERROR(device->BeginCapture());
  const absl::StatusOr<TensorView> output = queue();
  absl::StatusOr<std::unique_ptr<DeviceGraph>> graph = device->EndCapture();
  RETURN_IF_ERROR(output.status());
  RETURN_IF_ERROR(graph.status());
  return Graph{size, *std::move(graph), *output};
}

absl::Status GraphRunner::Capture(Device* device, const std::vector<int32_t>& sizes, bool warm,
                                  const Prepare& prepare, const Queue& queue) {
  graphs_.clear();
  std::vector<int32_t> order = sizes;
  std::sort(order.begin(), order.end(), std::greater<>());
  order.erase(std::unique(order.begin(), order.end()), order.end());
  std::vector<Graph> graphs;
  for (const int32_t size : order) {
    absl::StatusOr<Graph> graph = CaptureOne(device, size, warm, prepare, queue);
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
