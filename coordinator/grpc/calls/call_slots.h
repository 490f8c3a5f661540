#pragma once
// Counts the open calls of a kind, each of which has a thread. Thread safe. Internal to coordinator/grpc.

#include <atomic>
#include <cstdint>

namespace somnus {

class CallSlots {
 public:
  explicit CallSlots(int32_t max_open) : max_open_(max_open) {}
  CallSlots(const CallSlots&) = delete;
  CallSlots& operator=(const CallSlots&) = delete;

  // A call as long as the object exists. The slots must outlive the call.
  class Call {
   public:
    explicit Call(CallSlots* slots) : slots_(slots), fits_(++slots->open_ <= slots->max_open_) {}
    ~Call() { --slots_->open_; }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    // False: more calls are open than may be.
    bool fits() const { return fits_; }

   private:
    CallSlots* const slots_;
    const bool fits_;
  };

 private:
  const int32_t max_open_;
  std::atomic<int32_t> open_{0};
};

}  // namespace somnus
