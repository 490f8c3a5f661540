#pragma once
// A fiber: a function on a stack of its own, run a piece at a time on the host thread that created it. Tells
// the address and thread sanitizers of each switch.

#include <cstddef>

namespace somnus::cuda_emulated::emulator {

class Fiber {
 public:
  using Entry = void (*)(void*);

  Fiber() = default;
  ~Fiber();  // Not while the fiber is suspended in the middle: nothing on its stack would be destroyed.
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // entry(argument) runs on the first Resume. No exception may leave `entry`.
  void Start(Entry entry, void* argument);
  // Runs the fiber until the next Suspend or the end. Not from within a fiber.
  void Resume();
  // Called on the fiber: goes back to the thread that called Resume.
  void Suspend();

  bool started() const { return stack_ != nullptr; }
  bool done() const { return done_; }
  // Whether p lies on the fiber's stack.
  bool Holds(const void* p) const;

 private:
  struct Main;  // the entry of every fiber

  void* stack_ = nullptr;       // lowest address, behind the guard page
  void* tsan_fiber_ = nullptr;  // thread sanitizer's, shared with other fibers
  void* context_ = nullptr;     // of the suspended fiber
  void* caller_ = nullptr;      // of the caller of Resume while the fiber runs
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  bool done_ = false;
  // For the sanitizers.
  void* fake_stack_ = nullptr;
  const void* caller_stack_ = nullptr;
  size_t caller_stack_bytes_ = 0;
  void* tsan_caller_ = nullptr;
};

}  // namespace somnus::cuda_emulated::emulator
