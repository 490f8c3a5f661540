#pragma once
// Pages of the host's memory: ranges aligned to huge pages, and how they become resident. Thread safe.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace somnus {

inline constexpr int64_t kHugePage = int64_t{2} << 20;

// The error of errno: ResourceExhausted where memory lacks, otherwise Internal.
absl::Status ErrnoError(absl::string_view what, int64_t bytes);

// Maps a private range of `bytes`, a multiple of the page size, that begins at a huge page. protection,
// flags: of mmap, beside the flags of anonymous memory. Freed by munmap.
absl::StatusOr<void*> MapAtHugePage(int64_t bytes, int protection, int flags);

// Makes pages resident, by the calling thread; contents stay. 0, or the errno of the failure.
int PopulateRange(char* data, int64_t bytes);

// Maps zeros that are resident when the call returns, for a driver that pins the pages: huge pages where the
// kernel has them, made by several threads, from `numa_nodes` as in PlacePages (base/numa.h). A driver's own
// call for pinned memory makes pages by one thread (docs/gpu_verification.md). Freed by UnmapPages.
absl::StatusOr<void*> MapResidentPages(int64_t bytes, absl::Span<const int> numa_nodes);
// `bytes` as given to MapResidentPages.
void UnmapPages(void* data, int64_t bytes);

}  // namespace somnus
