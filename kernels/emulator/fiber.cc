#include "kernels/emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <boost/context/detail/fcontext.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace somnus::cuda_emulated::emulator {
namespace {

namespace context = boost::context::detail;

// Sanitizers make frames several times larger. Only pages that are touched cost memory.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kStackBytes = 256 << 10;
#else
constexpr size_t kStackBytes = 128 << 10;
#endif
constexpr size_t kGuardBytes = 64 << 10;  // whole pages: of 64 KiB on some aarch64 kernels
// A guarded stack is two mappings (thread sanitizer makes some more of each), of which a process may have
// 65530; further stacks have the canary alone, and come many in a mapping.
#if defined(__SANITIZE_THREAD__)
constexpr int kMaxGuarded = 4000;
#else
constexpr int kMaxGuarded = 16000;
#endif
constexpr int kStacksInOne = 128;
// Equal offsets in all stacks would share a few sets of the processor's caches, and each switch would miss
// them: a fiber's frames begin at one of kColors places, kColorBytes apart.
constexpr size_t kColors = 32;
constexpr size_t kColorBytes = 320;
constexpr uint64_t kCanary = 0x5bad57ac5bad57ac;

char* MapStacks(size_t bytes) {
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (base != MAP_FAILED) return static_cast<char*>(base);
  std::perror("CUDA emulator: no memory for the stack of a thread");
  std::abort();
}

// Stacks that are not in use, for all host threads. Stacks are never unmapped: there are as many stacks as
// fibers that ever ran at the same time.
class StackPool {
 public:
  // The lowest address, behind the guard.
  void* Take() {
    std::lock_guard lock(mutex_);
    if (free_.empty()) Add();
    void* const stack = free_.back();
    free_.pop_back();
    return stack;
  }

  void Return(void* stack) {
#if defined(__SANITIZE_ADDRESS__)
    // Memory that the last user's frames left poisoned is free for the next user.
    ASAN_UNPOISON_MEMORY_REGION(stack, kStackBytes);
#endif
    std::lock_guard lock(mutex_);
    free_.push_back(stack);
  }

 private:
  void Add() {
    const bool guarded = made_ < kMaxGuarded;
    const int count = guarded ? 1 : kStacksInOne;
    const size_t guard = guarded ? kGuardBytes : 0;
    char* const base = MapStacks(guard + count * kStackBytes);
    if (guarded) mprotect(base, kGuardBytes, PROT_NONE);
    for (int i = 0; i < count; ++i) {
      char* const stack = base + guard + i * kStackBytes;
      *reinterpret_cast<uint64_t*>(stack) = kCanary;
      free_.push_back(stack);
    }
    made_ += count;
  }

  std::mutex mutex_;
  std::vector<void*> free_;
  int made_ = 0;
};

StackPool& Pool() {
  static StackPool* const pool = new StackPool;
  return *pool;
}

#if defined(__SANITIZE_THREAD__)
// The fibers of thread sanitizer, which takes them for threads. A switch costs the sanitizer time for each of
// its fibers, so the fibers of a host thread, which never run at the same time, share a few; only the printed
// stacks are mixed up. A single one is not enough: the sanitizer keeps the frames of all suspended fibers
// that share it on a list of 64 Ki.
class TsanFibers {
 public:
  ~TsanFibers() {
    for (void* fiber : fibers_) {
      if (fiber != nullptr) __tsan_destroy_fiber(fiber);
    }
  }
  void* Next() {
    void*& fiber = fibers_[next_++ % kCount];
    if (fiber == nullptr) fiber = __tsan_create_fiber(0);
    return fiber;
  }

 private:
  static constexpr size_t kCount = 64;
  void* fibers_[kCount] = {};
  size_t next_ = 0;
};
thread_local TsanFibers tsan_fibers;
#endif

}  // namespace

struct Fiber::Main {
  // Entered by the first jump; never returns, which thread sanitizer would wait for.
#if defined(__SANITIZE_THREAD__)
  __attribute__((no_sanitize_thread))
#endif
  static void
  Run(context::transfer_t from) {
    Fiber* const self = static_cast<Fiber*>(from.data);
    self->caller_ = from.fctx;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &self->caller_stack_, &self->caller_stack_bytes_);
#endif
    self->entry_(self->argument_);
    self->done_ = true;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(nullptr, self->caller_stack_, self->caller_stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(self->tsan_caller_, 0);
#endif
    context::jump_fcontext(self->caller_, nullptr);
    std::abort();
  }
};

Fiber::~Fiber() {
  if (stack_ == nullptr) return;
  Pool().Return(stack_);
}

bool Fiber::Holds(const void* p) const { return p >= stack_ && p < static_cast<char*>(stack_) + kStackBytes; }

void Fiber::Start(Entry entry, void* argument) {
  if (stack_ == nullptr) stack_ = Pool().Take();
#if defined(__SANITIZE_THREAD__)
  tsan_fiber_ = tsan_fibers.Next();
#endif
  entry_ = entry;
  argument_ = argument;
  done_ = false;
  const size_t color = reinterpret_cast<uintptr_t>(stack_) / kGuardBytes % kColors;
  const size_t bytes = kStackBytes - color * kColorBytes;
  context_ = context::make_fcontext(static_cast<char*>(stack_) + bytes, bytes, &Main::Run);
}

void Fiber::Resume() {
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, stack_, kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
  tsan_caller_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_fiber_, 0);
#endif
  context_ = context::jump_fcontext(context_, this).fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  // The canary lies where nothing else does, so it is read once, at the fiber's end; a suspended fiber's
  // frames are compared by address.
  const bool overran = done_ ? *static_cast<uint64_t*>(stack_) != kCanary : !Holds(context_);
  if (overran) {
    std::fputs("CUDA emulator: a thread of a kernel overran its stack\n", stderr);
    std::abort();
  }
}

void Fiber::Suspend() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fake_stack_, caller_stack_, caller_stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(tsan_caller_, 0);
#endif
  caller_ = context::jump_fcontext(caller_, nullptr).fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &caller_stack_, &caller_stack_bytes_);
#endif
}

}  // namespace somnus::cuda_emulated::emulator
