#pragma once
// Contiguous memory in pieces of 2^k slots, as the paper assumes for Orca: a piece is split in halves until
// the piece is just large enough, and joined with its second half when both are free.

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

namespace somnus {

class BuddyAllocator {
 public:
  // The memory need not be a power of two: the memory begins as the largest pieces that fit in a row.
  explicit BuddyAllocator(int64_t num_slots);

  struct Piece {
    int64_t begin;
    int order;  // 2^order slots

    int64_t size() const { return int64_t{1} << order; }
  };
  // Nothing: no piece is large enough. `num_slots` is at least 1. Takes the lowest address of the smallest
  // pieces that are large enough.
  std::optional<Piece> Allocate(int64_t num_slots);
  void Free(const Piece& piece);

  int64_t free_slots() const { return free_slots_; }

 private:
  int64_t num_slots_;
  int64_t free_slots_;
  std::vector<std::set<int64_t>> free_;  // by order: the pieces' beginnings
};

}  // namespace somnus
