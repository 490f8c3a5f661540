#pragma once
// The rows of the workers' batch state. A running sequence has one slot, and so has each beam of a running
// search. When a sequence gives its slot up, the next step tells the workers so.
//
// Owned by the Scheduler; not thread safe.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "proto/worker.pb.h"

namespace somnus {

class Slots {
 public:
  explicit Slots(int32_t num_slots) : num_slots_(num_slots) {
    for (int32_t slot = num_slots - 1; slot >= 0; --slot) free_.push_back(slot);
  }

  size_t num_free() const { return free_.size(); }
  // There must be a free slot.
  int32_t Take() {
    const int32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  // `is_known`: workers know a sequence in the slot, so that the next step has to free it.
  void Return(int32_t slot, bool is_known) {
    free_.push_back(slot);
    if (is_known) freed_.push_back(slot);
  }

  // Whether the next step has to free slots.
  bool has_freed() const { return !freed_.empty(); }
  void SendFreed(v1::StepRequest* request) {
    request->mutable_freed_slots()->Add(freed_.begin(), freed_.end());
    freed_.clear();
  }
  // The workers have lost their batch state, and know no sequence any more.
  void ForgetFreed() { freed_.clear(); }

  // Internal unless every slot is free or in `taken`, which has no slot twice.
  absl::Status CheckIntegrity(const std::vector<int32_t>& taken) const {
    std::vector<bool> is_taken(num_slots_, false);
    for (const int32_t slot : taken) {
      if (slot < 0 || is_taken[slot]) return absl::InternalError("a slot is used twice");
      is_taken[slot] = true;
    }
    if (free_.size() + taken.size() != is_taken.size()) return absl::InternalError("slots do not add up");
    return absl::OkStatus();
  }

 private:
  const int32_t num_slots_;
  std::vector<int32_t> free_;  // a stack
  std::vector<int32_t> freed_;
};

}  // namespace somnus
