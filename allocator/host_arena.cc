#include "allocator/host_arena.h"

#include <algorithm>

#include "allocator/memory_shortage.h"

namespace somnus {
namespace {

// The shortage for all `needed` bytes that are going to be taken, where a chunk could not be had.
absl::Status Shortage(const absl::Status& status, int64_t needed) {
  if (!absl::IsResourceExhausted(status)) return status;
  return WithShortages(status, {{.needed_bytes = needed,
                                 .missing_bytes = MissingAfterRefusal(needed, status),
                                 .memory = MemoryKind::kHost}});
}

}  // namespace

HostArena::~HostArena() {
  for (const auto& [data, chunk] : chunks_) driver_->FreeHost(data, chunk.bytes);
}

absl::StatusOr<HostArena::Extent> HostArena::Take(int64_t bytes) {
  for (auto& [data, chunk] : chunks_) {
    if (!chunk.free.empty()) return TakeFrom(&chunk, bytes);
  }
  const int64_t size = std::min(chunk_bytes_, std::max(expected_, bytes));
  absl::StatusOr<void*> data = driver_->AllocateHost(size);
  if (!data.ok()) return Shortage(data.status(), std::max(expected_, bytes));
  char* const begin = static_cast<char*>(*data);
  Chunk& chunk = chunks_[begin];
  chunk.bytes = chunk.free_bytes = size;
  chunk.free[begin] = size;
  return TakeFrom(&chunk, bytes);
}

HostArena::Extent HostArena::TakeFrom(Chunk* chunk, int64_t bytes) {
  const auto [data, free] = *chunk->free.begin();
  const Extent extent = {data, std::min(free, bytes)};
  chunk->free.erase(chunk->free.begin());
  if (extent.bytes < free) chunk->free[data + extent.bytes] = free - extent.bytes;
  chunk->free_bytes -= extent.bytes;
  expected_ = std::max<int64_t>(0, expected_ - extent.bytes);
  return extent;
}

void HostArena::Give(const Extent& extent) {
  const auto chunk = std::prev(chunks_.upper_bound(extent.data));
  std::map<char*, int64_t>& free = chunk->second.free;
  auto it = free.emplace(extent.data, extent.bytes).first;
  if (const auto next = std::next(it); next != free.end() && it->first + it->second == next->first) {
    it->second += next->second;
    free.erase(next);
  }
  if (it != free.begin()) {
    const auto before = std::prev(it);
    if (before->first + before->second == it->first) {
      before->second += it->second;
      free.erase(it);
    }
  }
  chunk->second.free_bytes += extent.bytes;
  if (chunk->second.free_bytes < chunk->second.bytes) return;
  driver_->FreeHost(chunk->first, chunk->second.bytes);
  chunks_.erase(chunk);
}

}  // namespace somnus
