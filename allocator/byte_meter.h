#pragma once
// Counts the bytes that a sleep or a wake-up has moved so far, for progress reports. Thread safe; the number
// orders nothing else (relaxed), so that several threads can count every page.

#include <atomic>
#include <cstdint>

namespace somnus {

class ByteMeter {
 public:
  void Advance(int64_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  // Begins anew; nobody may count meanwhile.
  void Reset() { bytes_.store(0, std::memory_order_relaxed); }
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> bytes_{0};
};

}  // namespace somnus
