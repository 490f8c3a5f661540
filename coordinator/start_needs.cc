#include "coordinator/start_needs.h"

#include <algorithm>

#include "base/descriptors.h"

namespace somnus {
namespace {

// Counted at a coordinator that serves, without its workers' descriptors and without connections, and a
// reserve for files that are open for a moment.
constexpr int64_t kOwnDescriptors = 28;
constexpr int64_t kDescriptorsOfGroup = 4;   // where its workers register
constexpr int64_t kDescriptorsOfWorker = 4;  // two pipes, the process and the connections
constexpr int64_t kConnections = 4;          // of clients, at once
// The threads of the listeners, of gRPC and of one model, before any request. Counts of threads are the most
// that a pids cgroup has seen between start and end (pids.peak), on two processors: gRPC hangs at its end,
// and a worker aborts, where a thread is missing.
constexpr int kThreads = 38;
constexpr int kThreadsOfEnd = 1;       // which guards the end against a file system that does not answer
constexpr int kThreadsOfModel = 11;    // of each further model
constexpr int kThreadsOfReplica = 8;   // of each further replica
constexpr int kThreadsOfAdapters = 2;  // of a model with --enable-lora
constexpr int kThreadsOfWorker = 21;
constexpr int64_t kMostWorkerThreads = 2048;  // the check starts no more for workers
// Mostly the threads' stacks and the allocator's arenas.
constexpr int64_t kAddressBytes = int64_t{3} << 29;

}  // namespace

StartNeeds NeedsOf(const Flags& flags) {
  const auto num_models = static_cast<int64_t>(std::max<size_t>(1, flags.models.size()));
  const int64_t num_workers =
      int64_t{flags.world_size} * (flags.models.empty() ? 1 : flags.pipeline_parallel_size);
  const int64_t num_groups = num_models * flags.data_parallel_size;
  const int64_t for_clients = kOwnDescriptors + num_groups * kDescriptorsOfGroup +
                              num_groups * num_workers * kDescriptorsOfWorker + kConnections;
  const int64_t threads = kThreads + kThreadsOfEnd + (num_models - 1) * kThreadsOfModel +
                          num_models * (flags.data_parallel_size - 1) * kThreadsOfReplica +
                          (flags.lora.enabled ? num_models * kThreadsOfAdapters : 0);
  const bool starts_workers = flags.local_workers && !flags.discover_workers;
  const int64_t worker_threads =
      starts_workers ? std::min(num_groups * num_workers * kThreadsOfWorker, kMostWorkerThreads) : 0;
  return {.descriptors = LeastDescriptors(for_clients),
          .threads = static_cast<int>(threads),
          .worker_threads = static_cast<int>(worker_threads),
          .address_bytes = kAddressBytes};
}

}  // namespace somnus
