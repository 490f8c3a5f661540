#include "kernels/emulator/race_detector.h"

#include <atomic>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/emulator/barrier_sites.h"
#include "kernels/emulator/code_place.h"
#include "kernels/emulator/grid.h"
#include "kernels/emulator/options.h"

namespace somnus::cuda_emulated::emulator {
namespace {

using Kind = Access::Kind;

int WarpOf(const Access& access) { return access.thread / 32; }

bool Conflict(const Access& then, const Access& now) {
  if (then.kind == Kind::kNone) return false;
  if (then.kind == Kind::kRead && now.kind == Kind::kRead) return false;
  return then.kind != Kind::kAtomic || now.kind != Kind::kAtomic;
}

const char* Verb(Kind kind) {
  return kind == Kind::kRead ? "reads" : kind == Kind::kWrite ? "writes" : "updates atomically";
}

std::string Describe(const Access& access) {
  return absl::StrFormat("block %d thread %d %s at %s", access.block, access.thread, Verb(access.kind),
                         CodePlace(access.code));
}

// How many detectors the process has: with none, an access costs a single comparison.
constinit std::atomic<int> num_detectors{0};

void NoteFor(Thread* thread, const void* p, int64_t bytes, Kind kind, const void* return_address) {
  if (num_detectors.load(std::memory_order_relaxed) == 0) return;
  if (thread == nullptr || thread->unobserved) return;
  RaceDetector* const races = thread->block->grid->races();
  if (races != nullptr) races->Note(*thread, p, bytes, kind, return_address);
}

// The memory of PassOverRaces. Thread safe.
class SharedOnPurpose {
 public:
  static SharedOnPurpose& OfProcess() {
    static SharedOnPurpose* const all = new SharedOnPurpose;
    return *all;
  }

  void Add(uintptr_t begin, uintptr_t bytes) {
    const std::lock_guard lock(mutex_);
    ends_[begin] = begin + bytes;
  }
  void RemoveFrom(uintptr_t begin, uintptr_t bytes) {
    const std::lock_guard lock(mutex_);
    ends_.erase(ends_.lower_bound(begin), ends_.lower_bound(begin + bytes));
  }
  bool Holds(uintptr_t address) const {
    const std::lock_guard lock(mutex_);
    const auto after = ends_.upper_bound(address);
    return after != ends_.begin() && address < std::prev(after)->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<uintptr_t, uintptr_t> ends_;  // by the first address
};

}  // namespace

void PassOverRaces(const void* data, int64_t bytes) {
  SharedOnPurpose::OfProcess().Add(reinterpret_cast<uintptr_t>(data), static_cast<uintptr_t>(bytes));
}
void FindRacesAgain(const void* data, int64_t bytes) {
  SharedOnPurpose::OfProcess().RemoveFrom(reinterpret_cast<uintptr_t>(data), static_cast<uintptr_t>(bytes));
}

// ---- AccessShadow

void AccessShadow::Page::Refine(int new_shift) {
  const size_t parts = size_t{1} << (shift - new_shift);
  std::vector<Cell> smaller(cells.size() * parts);
  for (size_t i = 0; i < smaller.size(); ++i) smaller[i] = cells[i / parts];
  cells = std::move(smaller);
  shift = new_shift;
}

void AccessShadow::Keep(Cell& cell, const Access& now) {
  if (now.kind != Kind::kRead) {
    cell = Cell{now, {}};
    return;
  }
  // The next writer is a different thread than at least one of two readers, and in a different warp than at
  // least one reader where the readers were in two warps.
  const auto same = [&](const Access& read) { return read.block == now.block && read.thread == now.thread; };
  const auto same_warp = [&](const Access& read) {
    return read.block == now.block && WarpOf(read) == WarpOf(now);
  };
  if (cell.reads[0].kind == Kind::kNone || same(cell.reads[0])) {
    cell.reads[0] = now;
  } else if (cell.reads[1].kind == Kind::kNone || same_warp(cell.reads[1]) || !same_warp(cell.reads[0])) {
    cell.reads[1] = now;
  } else {
    cell.reads[0] = now;
  }
}

// ---- RaceDetector

RaceDetector::RaceDetector(const Grid* grid, std::shared_ptr<RaceDetector> previous)
    : grid_(grid), previous_(std::move(previous)) {
  num_detectors.fetch_add(1, std::memory_order_relaxed);
  if (previous_ != nullptr) previous_->next_ = this;
}

RaceDetector::~RaceDetector() {
  num_detectors.fetch_sub(1, std::memory_order_relaxed);
  if (previous_ != nullptr) previous_->next_ = nullptr;
}

void RaceDetector::End() {
  if (next_ == nullptr) return;
  // The grid holds this object, so that the object outlives the call.
  RaceDetector* const next = std::exchange(next_, nullptr);
  next->previous_ = nullptr;
}

void RaceDetector::Note(const Thread& thread, const void* p, int64_t bytes, Kind kind,
                        const void* return_address) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(p);
  if (thread.fiber.Holds(p)) return;
  Block& block = *thread.block;
  const uintptr_t shared = reinterpret_cast<uintptr_t>(block.shared);
  const bool is_shared =
      begin >= shared && begin < shared + static_cast<uintptr_t>(grid_->launch().shared_bytes);
  const Access now{.block = static_cast<uint32_t>(block.number),
                   .thread = static_cast<uint16_t>(thread.linear),
                   .kind = kind,
                   .moment = block.barrier_order.Now(thread.linear / 32),
                   .code = CodeOffset(return_address)};
  const uintptr_t length = static_cast<uintptr_t>(bytes);
  (is_shared ? block.shared_accesses : global_).ForEach(begin, length, [&](AccessShadow::Cell& cell) {
    CheckOwn(thread, cell, now, begin);
    AccessShadow::Keep(cell, now);
  });
  if (is_shared) return;
  for (const RaceDetector* other = previous_.get(); other != nullptr; other = other->previous_.get())
    CheckOther(*other, now, begin, length);
  for (const RaceDetector* other = next_; other != nullptr; other = other->next_)
    CheckOther(*other, now, begin, length);
}

void RaceDetector::CheckOwn(const Thread& thread, const AccessShadow::Cell& cell, const Access& now,
                            uintptr_t address) const {
  CheckPair(thread, cell.write, now, address);
  for (const Access& read : cell.reads) CheckPair(thread, read, now, address);
}

void RaceDetector::CheckPair(const Thread& thread, const Access& then, const Access& now,
                             uintptr_t address) const {
  if (!Conflict(then, now)) return;
  const Block& block = *thread.block;
  if (then.block != now.block) {
    if (!block.has_acquired) Report(grid_, then, now, address, "global");
    return;
  }
  if (then.thread == now.thread) return;
  const BarrierOrder::Answer answer =
      block.barrier_order.OrderedSince(then.moment, WarpOf(then), WarpOf(now));
  if (!answer.ordered) {
    const uintptr_t shared = reinterpret_cast<uintptr_t>(block.shared);
    const bool is_shared =
        address >= shared && address < shared + static_cast<uintptr_t>(grid_->launch().shared_bytes);
    Report(grid_, then, now, address, is_shared ? "shared" : "global");
  }
  if (answer.only_site >= 0) NoteNeeded(answer.only_site);
}

void RaceDetector::CheckOther(const RaceDetector& other, const Access& now, uintptr_t begin,
                              uintptr_t bytes) const {
  other.global_.ForEachKnown(begin, bytes, [&](const AccessShadow::Cell& cell) {
    for (const Access* then : {&cell.write, &cell.reads[0], &cell.reads[1]}) {
      if (Conflict(*then, now)) Report(other.grid_, *then, now, begin, "global");
    }
  });
}

void RaceDetector::Report(const Grid* other, const Access& then, const Access& now, uintptr_t address,
                          const char* space) const {
  if (SharedOnPurpose::OfProcess().Holds(address)) return;
  Die(absl::StrCat(
      grid_->Describe(), ": race in ", space, " memory at ", absl::StrFormat("%#x", address), ":\n  ",
      Describe(then),
      other == grid_ ? std::string() : absl::StrCat(", in ", other->Describe(), ", which still runs"), "\n  ",
      Describe(now), "\n  and nothing orders the two"));
}

// ---- Called by the running thread

void NoteAcquire() {
  if (Thread* const thread = CurrentThread()) thread->block->has_acquired = true;
}

void NoteRowRead(const void* row) { NoteRead(row, 16, __builtin_return_address(0)); }
void NoteRead(const void* p, int64_t bytes, const void* return_address) {
  NoteFor(CurrentThread(), p, bytes, Kind::kRead, return_address);
}
void NoteWrite(const void* p, int64_t bytes, const void* return_address) {
  NoteFor(CurrentThread(), p, bytes, Kind::kWrite, return_address);
}
void NoteAtomic(const void* p, int64_t bytes, const void* return_address) {
  NoteFor(CurrentThread(), p, bytes, Kind::kAtomic, return_address);
}

}  // namespace somnus::cuda_emulated::emulator
