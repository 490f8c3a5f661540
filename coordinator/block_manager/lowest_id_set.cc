#include "coordinator/block_manager/lowest_id_set.h"

#include <bit>

#include "base/check.h"

namespace somnus {

LowestIdSet::LowestIdSet(int32_t capacity) {
  SOMNUS_CHECK(capacity >= 1);
  size_t bits = static_cast<size_t>(capacity);
  do {
    bits = (bits + kBits - 1) / kBits;
    levels_.emplace_back(bits, 0);
  } while (bits > 1);
}

int32_t LowestIdSet::Lowest() const {
  SOMNUS_CHECK(size_ > 0);
  int32_t id = 0;
  for (auto level = levels_.rbegin(); level != levels_.rend(); ++level)
    id = id * kBits + std::countr_zero((*level)[id]);
  return id;
}

void LowestIdSet::Insert(int32_t id) {
  SOMNUS_CHECK(!contains(id));
  ++size_;
  for (std::vector<uint64_t>& level : levels_) {
    uint64_t& word = level[id / kBits];
    const bool was_empty = word == 0;
    word |= uint64_t{1} << (id % kBits);
    if (!was_empty) return;
    id /= kBits;
  }
}

void LowestIdSet::Erase(int32_t id) {
  SOMNUS_CHECK(contains(id));
  --size_;
  for (std::vector<uint64_t>& level : levels_) {
    uint64_t& word = level[id / kBits];
    word &= ~(uint64_t{1} << (id % kBits));
    if (word != 0) return;
    id /= kBits;
  }
}

}  // namespace somnus
