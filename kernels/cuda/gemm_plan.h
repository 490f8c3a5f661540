#pragma once
// The inputs that decide how the library makes a matrix product, and the caches of these decisions. Plain
// numbers: no CUDA here.

#include <cstddef>
#include <cstdint>
#include <list>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "kernels/tensor.h"

namespace somnus {

// Two products with the same key may use the same plan.
struct GemmKey {
  int64_t rows = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t x_stride = 0;
  int64_t y_stride = 0;
  DataType act = DataType::kBF16;
  DataType out = DataType::kBF16;
  bool bias = false;
  // Bytes that the addresses are multiples of; see AlignmentOf.
  int32_t x_alignment = 0;
  int32_t w_alignment = 0;
  int32_t y_alignment = 0;

  bool operator==(const GemmKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const GemmKey& key) {
    return H::combine(std::move(h), key.rows, key.n, key.k, key.x_stride, key.y_stride, key.act, key.out,
                      key.bias, key.x_alignment, key.w_alignment, key.y_alignment);
  }
};

// The largest power of two, up to 256, that divides the address; the library's choice may rely on this
// alignment.
int32_t AlignmentOf(const void* data);

// The largest row count of the group that shares a choice of the library's algorithm. Exact up to 16, then in
// steps of an eighth of the power of two below, 16 at least: the tiles that suit the largest waste little on
// the smallest. (The product itself is made for the exact count.)
int64_t BucketRows(int64_t rows);

// The `capacity` most recently used entries.
template <typename Key, typename Value>
class LruCache {
 public:
  explicit LruCache(size_t capacity) : capacity_(capacity) {}

  // Returns the key's entry, which is valid until the next Put; nullptr if there is none.
  Value* Find(const Key& key) {
    const auto it = index_.find(key);
    if (it == index_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, it->second);
    return &it->second->second;
  }
  // Replaces the key's entry; the least recently used entry leaves when there are too many.
  Value* Put(const Key& key, Value value) {
    if (Value* old = Find(key)) {
      *old = std::move(value);
      return old;
    }
    if (index_.size() >= capacity_) {
      index_.erase(entries_.back().first);
      entries_.pop_back();
    }
    entries_.emplace_front(key, std::move(value));
    index_[key] = entries_.begin();
    return &entries_.front().second;
  }
  void Clear() {
    index_.clear();
    entries_.clear();
  }
  size_t size() const { return index_.size(); }

 private:
  using Entries = std::list<std::pair<Key, Value>>;
  const size_t capacity_;
  Entries entries_;  // The most recently used first.
  absl::flat_hash_map<Key, typename Entries::iterator> index_;
};

}  // namespace somnus
