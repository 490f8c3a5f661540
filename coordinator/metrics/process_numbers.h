#pragma once
// Figures about this process, as Prometheus' client libraries report it. Values.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace somnus {

struct ProcessNumbers {
  double cpu_seconds = 0;  // in user and system mode
  double start_time = 0;   // Unix seconds
  int64_t resident_bytes = 0;
  int64_t virtual_bytes = 0;
  int64_t open_fds = 0;
  int64_t max_fds = 0;  // 0: no bound
};

// Reads the text of /proc/[pid]/stat (proc(5)), which has all figures but the descriptors. `boot_time` is in
// Unix seconds. InvalidArgument: the text is not of that form.
absl::StatusOr<ProcessNumbers> ParseProcessStat(absl::string_view stat, double boot_time,
                                                int64_t ticks_per_second, int64_t page_bytes);

// Reads /proc. Unavailable: /proc is not there or has another form.
absl::StatusOr<ProcessNumbers> ReadProcessNumbers();

}  // namespace somnus
