#include "worker/kv_memory.h"

#include <algorithm>

#include "base/log.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

double Mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// Captures the graphs and measures how much of the device's memory they take.
absl::Status MeasureGraphs(ModelRunner* runner, VmmDriver* driver, KvMemory* memory) {
  ASSIGN_OR_RETURN(const int64_t before, driver->AvailableBytes());
  ASSIGN_OR_RETURN(const GraphReport graphs, runner->ProfileGraphs());
  if (graphs.count == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int64_t after, driver->AvailableBytes());
  memory->graph_bytes = std::max<int64_t>(0, before - after);  // other processes may have freed some
  memory->graph_seconds = graphs.seconds;
  LogInfo("{} decode graphs take {:.1f} MiB of the device's memory", graphs.count, Mib(memory->graph_bytes));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<KvMemory> MeasureKvMemory(const LoadOptions& options, ModelRunner* runner,
                                         Communicator* communicator, VmmDriver* driver) {
  KvMemory memory;
  const double utilization = options.memory_utilization;
  RETURN_IF_ERROR(runner->Profile());
  if (options.device == DeviceKind::kCpu) {
    // No rank allocates between this barrier and AllocateKvCache: all ranks measure the same, and each takes
    // its share.
    RETURN_IF_ERROR(communicator->Barrier());
    ASSIGN_OR_RETURN(const int64_t available, driver->AvailableBytes());
    const double share = utilization / options.ranks_on_host;
    memory.available_bytes = static_cast<int64_t>(static_cast<double>(available) * share);
    return memory;
  }
  RETURN_IF_ERROR(MeasureGraphs(runner, driver, &memory));
  RETURN_IF_ERROR(communicator->Barrier());
  ASSIGN_OR_RETURN(const int64_t total, driver->TotalBytes());
  ASSIGN_OR_RETURN(const int64_t available, driver->AvailableBytes());
  const int64_t spare = total - static_cast<int64_t>(static_cast<double>(total) * utilization);
  // A region consists of whole pages.
  const int64_t page = driver->Granularity();
  memory.available_bytes = std::max<int64_t>(0, available - spare) / page * page;
  if (memory.available_bytes < 2 * runner->kv_block_bytes()) {
    LogWarning(
        "no memory is left for a KV cache: of the device's {:.1f} MiB, {:.1f} are taken, {:.1f} of these "
        "by decode graphs, and --memory-utilization={} leaves {:.1f} alone; fewer --graph-sizes, "
        "--enforce-eager or a smaller --max-num-batched-tokens take less",
        Mib(total), Mib(total - available), Mib(memory.graph_bytes), utilization, Mib(spare));
  }
  return memory;
}

}  // namespace somnus
