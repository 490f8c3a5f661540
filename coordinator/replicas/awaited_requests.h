#pragma once
// The open requests that a lifecycle call waits for, and the later requests that stay in the queue meanwhile.
// A value without a lock; the queue of the replicas guards the object.

#include <cstdint>
#include <limits>

namespace somnus {

class AwaitedRequests {
 public:
  // The call waits for `num_open` requests; requests of the order `next_order` and later are held back.
  void Begin(int64_t next_order, int64_t num_open) {
    hold_back_from_ = next_order;
    num_left_ = num_open;
  }
  // The call has ended: no request is held back.
  void End() { hold_back_from_ = std::numeric_limits<int64_t>::max(); }

  bool HoldsBack(int64_t order) const { return order >= hold_back_from_; }
  void NoteEnded(int64_t order) { num_left_ -= HoldsBack(order) ? 0 : 1; }
  // Since Begin: requests that have not ended.
  int64_t num_left() const { return num_left_; }

 private:
  int64_t hold_back_from_ = std::numeric_limits<int64_t>::max();
  int64_t num_left_ = 0;
};

}  // namespace somnus
