#pragma once
// Host memory that is resident when it is handed out, for a driver that pins it. A driver's own call for
// pinned memory makes the pages by one thread (0.4 to 0.7 s for a GiB on an H100's host, where this takes
// 0.02 to 0.03 with 16 threads: docs/gpu_verification.md).

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace somnus {

// Maps `bytes`, rounded up to whole huge pages, of zeros: huge pages where the kernel has them, made by
// several threads, from `numa_nodes` as in PlacePages (base/numa.h). The caller gives them back with
// UnmapPages. ResourceExhausted where the kernel refuses. Thread safe.
absl::StatusOr<void*> MapResidentPages(int64_t bytes, absl::Span<const int> numa_nodes);
// `bytes` as they were asked for.
void UnmapPages(void* data, int64_t bytes);

}  // namespace somnus
