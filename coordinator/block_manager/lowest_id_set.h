#pragma once
// A set of small numbers that gives out the lowest number, in a time that does not depend on the size of the
// set: a bitmap, and above it bitmaps of the words that are not empty. Not thread safe.

#include <cstdint>
#include <vector>

namespace somnus {

class LowestIdSet {
 public:
  // Of ids in [0, capacity). Empty.
  explicit LowestIdSet(int32_t capacity);

  int32_t size() const { return size_; }
  bool contains(int32_t id) const { return (levels_[0][id / kBits] >> (id % kBits) & 1) != 0; }
  // The set must not be empty.
  int32_t Lowest() const;
  // `id` must not be in the set.
  void Insert(int32_t id);
  // `id` must be in the set.
  void Erase(int32_t id);

 private:
  static constexpr int32_t kBits = 64;

  std::vector<std::vector<uint64_t>> levels_;  // bit i of a level: word i of the level below has a bit
  int32_t size_ = 0;
};

}  // namespace somnus
