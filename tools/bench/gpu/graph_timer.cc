#include "tools/bench/gpu/graph_timer.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>

#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr int kReplays = 5;

}  // namespace

absl::StatusOr<double> TimeOp(Device& device, int repeats, const std::function<void()>& op) {
  op();
  RETURN_IF_ERROR(device.Synchronize());
  RETURN_IF_ERROR(device.BeginCapture());
  for (int i = 0; i < repeats; ++i) op();
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceGraph> graph, device.EndCapture());
  double best = std::numeric_limits<double>::infinity();
  for (int replay = 0; replay < kReplays; ++replay) {
    const auto start = std::chrono::steady_clock::now();
    graph->Launch();
    RETURN_IF_ERROR(device.Synchronize());
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count());
  }
  return best / repeats;
}

}  // namespace somnus
