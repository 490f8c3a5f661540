#include "tools/simulator/buddy_allocator.h"

#include <bit>

#include "base/check.h"

namespace somnus {

BuddyAllocator::BuddyAllocator(int64_t num_slots) : num_slots_(num_slots), free_slots_(num_slots) {
  SOMNUS_CHECK(num_slots >= 1);
  free_.resize(std::bit_width(static_cast<uint64_t>(num_slots)));
  int64_t begin = 0;
  for (int order = static_cast<int>(free_.size()) - 1; order >= 0; --order) {
    if ((num_slots >> order & 1) == 0) continue;
    free_[order].insert(begin);
    begin += int64_t{1} << order;
  }
}

std::optional<BuddyAllocator::Piece> BuddyAllocator::Allocate(int64_t num_slots) {
  SOMNUS_CHECK(num_slots >= 1);
  const int order = std::bit_width(static_cast<uint64_t>(num_slots - 1));
  int found = order;
  while (found < static_cast<int>(free_.size()) && free_[found].empty()) ++found;
  if (found >= static_cast<int>(free_.size())) return std::nullopt;
  const int64_t begin = *free_[found].begin();
  free_[found].erase(free_[found].begin());
  while (found > order) {
    --found;
    free_[found].insert(begin + (int64_t{1} << found));
  }
  free_slots_ -= int64_t{1} << order;
  return Piece{begin, order};
}

void BuddyAllocator::Free(const Piece& piece) {
  free_slots_ += piece.size();
  int64_t begin = piece.begin;
  int order = piece.order;
  // The pieces of the beginning are never joined: each begins at a multiple of twice its size, and its second
  // half would be beyond the end.
  while (order + 1 < static_cast<int>(free_.size())) {
    const int64_t buddy = begin ^ (int64_t{1} << order);
    if (buddy + (int64_t{1} << order) > num_slots_ || free_[order].erase(buddy) == 0) break;
    begin = begin < buddy ? begin : buddy;
    ++order;
  }
  free_[order].insert(begin);
}

}  // namespace somnus
