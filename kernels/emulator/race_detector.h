#pragma once
// Finds races in kernels: two accesses to a byte of shared or global memory by different threads, at least
// the first or the second a write and not both atomic, that no barrier orders (barrier_order.h). Blocks of a
// kernel are not ordered among each other. A block that has read a flag with acquire semantics (NoteAcquire)
// is not compared with further blocks from then on, since releases are not modelled. A kernel that started
// early (programmatic dependent launch) is ordered behind the kernel in front only once the latter has ended.
// The detector finds a race in every schedule in which both accesses happen. The first race ends the process
// with a message that names both places.
//
// The accesses come from instrumented kernels (instrumentation.cc) and from the emulator's own copies.
// Nothing is known of accesses by the host, by copies of streams, or by kernels of different streams.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/emulator/barrier_order.h"

namespace somnus::cuda_emulated::emulator {

class Grid;
struct Thread;

struct Access {
  enum class Kind : uint8_t { kNone, kRead, kWrite, kAtomic };

  uint32_t block = 0;  // linear number in the grid
  uint16_t thread = 0;
  Kind kind = Kind::kNone;
  BarrierOrder::Moment moment;
  uint32_t code = 0;  // where in the executable: an offset from its first byte
};

// The last accesses to each byte of an address space. Bytes that were always accessed together share a cell:
// a page begins with cells of 16 bytes, and gets smaller cells once an access covers a part of a cell. Used
// by a single host thread.
class AccessShadow {
 public:
  struct Cell {
    Access write;     // or atomic
    Access reads[2];  // of different threads, and of different warps where there are such
  };
  // Calls fn(cell) for each cell of the range. The cells lie wholly in the range.
  template <typename Fn>
  void ForEach(uintptr_t begin, uintptr_t bytes, const Fn& fn) {
    for (const uintptr_t end = begin + bytes; begin < end;) {
      const uintptr_t stop = std::min(end, (begin / kPageBytes + 1) * kPageBytes);
      Page& page = PageOf(begin / kPageBytes);
      // The largest power of two that divides `begin` and `stop`.
      const int shift = std::countr_zero(begin | stop | kLargestCell);
      if (shift < page.shift) page.Refine(shift);
      for (; begin < stop; begin += uintptr_t{1} << page.shift)
        fn(page.cells[begin % kPageBytes >> page.shift]);
    }
  }
  // As ForEach, for the cells that exist already; cells at the ends may reach beyond the range.
  template <typename Fn>
  void ForEachKnown(uintptr_t begin, uintptr_t bytes, const Fn& fn) const {
    for (const uintptr_t end = begin + bytes; begin < end;) {
      const uintptr_t stop = std::min(end, (begin / kPageBytes + 1) * kPageBytes);
      const auto it = pages_.find(begin / kPageBytes);
      for (uintptr_t at = begin; it != pages_.end() && at < stop;
           at = ((at >> it->second->shift) + 1) << it->second->shift)
        fn(it->second->cells[at % kPageBytes >> it->second->shift]);
      begin = stop;
    }
  }
  // Keeps the access `now`, which has been checked against the cell.
  static void Keep(Cell& cell, const Access& now);

 private:
  static constexpr uintptr_t kPageBytes = 256;
  static constexpr uintptr_t kLargestCell = 16;
  static constexpr size_t kNumRecent = 64;
  struct Page {
    void Refine(int new_shift);

    int shift = std::countr_zero(kLargestCell);  // of the bytes of a cell
    std::vector<Cell> cells = std::vector<Cell>(kPageBytes / kLargestCell);
  };
  struct Recent {
    uintptr_t number = ~uintptr_t{0};
    Page* page = nullptr;
  };

  Page& PageOf(uintptr_t number) {
    Recent& recent = recent_[number % kNumRecent];
    if (recent.number != number) {
      std::unique_ptr<Page>& page = pages_[number];
      if (page == nullptr) page = std::make_unique<Page>();
      recent = {number, page.get()};
    }
    return *recent.page;
  }

  absl::flat_hash_map<uintptr_t, std::unique_ptr<Page>> pages_;  // by number
  Recent recent_[kNumRecent];
};

// The accesses of a grid. Owned by the grid, and used on the grid's host thread.
class RaceDetector {
 public:
  // `previous`: of the kernel in front, if that may still run; else nullptr.
  RaceDetector(const Grid* grid, std::shared_ptr<RaceDetector> previous);
  ~RaceDetector();
  RaceDetector(const RaceDetector&) = delete;
  RaceDetector& operator=(const RaceDetector&) = delete;

  // An access by the running thread `thread` of this grid. `return_address`: in the code that accesses.
  void Note(const Thread& thread, const void* p, int64_t bytes, Access::Kind kind,
            const void* return_address);
  // The grid has ended: later accesses of the next grid are ordered behind the grid's accesses.
  void End();

 private:
  void CheckOwn(const Thread& thread, const AccessShadow::Cell& cell, const Access& now,
                uintptr_t address) const;
  void CheckPair(const Thread& thread, const Access& then, const Access& now, uintptr_t address) const;
  void CheckOther(const RaceDetector& other, const Access& now, uintptr_t begin, uintptr_t bytes) const;
  // Ends the process, unless threads may write to the address together.
  void Report(const Grid* other, const Access& then, const Access& now, uintptr_t address,
              const char* space) const;

  const Grid* const grid_;
  AccessShadow global_;
  std::shared_ptr<RaceDetector> previous_;  // nullptr once that grid has ended
  RaceDetector* next_ = nullptr;            // of the kernel that started early behind this grid
};

// For accesses that the emulator makes in a kernel's name. Do nothing outside kernels, or when races are not
// looked for.
void NoteRead(const void* p, int64_t bytes, const void* return_address);
void NoteWrite(const void* p, int64_t bytes, const void* return_address);
void NoteAtomic(const void* p, int64_t bytes, const void* return_address);

}  // namespace somnus::cuda_emulated::emulator
