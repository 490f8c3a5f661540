#include "base/start_limits.h"

#include <signal.h>
#include <sys/resource.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/bytes_text.h"
#include "base/descriptors.h"
#include "base/monotonic.h"
#include "base/status_macros.h"
#include "base/threads.h"

namespace somnus {
namespace {

absl::Status CheckDescriptors(int64_t needed) {
  const int64_t limit = RaiseDescriptorLimit().all;
  if (limit >= needed) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("this process may have ", limit,
                                                    " file descriptors, and needs at least ", needed,
                                                    ": raise the hard limit (ulimit -Hn, LimitNOFILE)"));
}

absl::Status CheckAddresses(int64_t needed) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return absl::OkStatus();
  if (limit.rlim_cur >= static_cast<rlim_t>(needed)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this process may map ", BytesText(static_cast<int64_t>(limit.rlim_cur)),
                   " of addresses, and needs at least ", BytesText(needed),
                   " beside its models: raise the limit (ulimit -v, LimitAS)"));
}

// With a limit of addresses, workers' threads cannot be tried here: each worker has addresses of its own.
bool BoundsAddresses() {
  rlimit limit = {};
  return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

absl::Status CheckThreads(int own, int of_workers) {
  const bool counts_workers = of_workers > 0 && !BoundsAddresses();
  const int needed = own + (counts_workers ? of_workers : 0);
  std::vector<std::thread> threads;
  StopSignal enough;
  for (int i = 0; i < needed; ++i) {
    absl::StatusOr<std::thread> thread = StartThread([&enough] { enough.WaitFor(absl::InfiniteDuration()); });
    if (!thread.ok()) break;
    threads.push_back(*std::move(thread));
  }
  enough.Stop();
  for (std::thread& thread : threads) thread.join();
  if (static_cast<int>(threads.size()) == needed) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      counts_workers ? "this process and its workers" : "this process", " can start ", threads.size(),
      " threads, and ", counts_workers ? "need" : "needs", " at least ", needed,
      ": raise the limit that holds it back (ulimit -u, TasksMax or pids.max of its cgroup, ulimit -v)"));
}

}  // namespace

absl::Status CheckStartLimits(const StartNeeds& needs) {
  signal(SIGXFSZ, SIG_IGN);
  RETURN_IF_ERROR(CheckDescriptors(needs.descriptors));
  RETURN_IF_ERROR(CheckAddresses(needs.address_bytes));
  return CheckThreads(needs.threads, needs.worker_threads);
}

}  // namespace somnus
