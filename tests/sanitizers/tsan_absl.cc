// Tells ThreadSanitizer what Abseil's locks order. Debian's libabsl is not instrumented, so TSan sees neither
// its locks nor what they protect. These definitions come before the library's in the dynamic linker's order
// (they are linked into every binary of --config=tsan), call the real ones, and report acquire and release.
//
// Conditions are evaluated under the lock, but inside the library and possibly on the unlocking thread, after
// the release was reported: reads are ignored there.

#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);

namespace {

template <typename Function>
Function* Real(const char* mangled) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, mangled));
}

struct IgnoreReads {
  IgnoreReads() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~IgnoreReads() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

struct AcquireAtEnd {
  ~AcquireAtEnd() { __tsan_acquire(lock); }
  void* const lock;
};

// `call` takes `lock`, or takes it again.
template <typename Call>
auto Take(void* lock, const Call& call) {
  const AcquireAtEnd end{lock};
  const IgnoreReads ignore;
  return call();
}

}  // namespace

#define REAL(mangled, ...) static auto* const real = Real<__VA_ARGS__>(mangled)
#define NS "N4absl7debian3"

namespace absl {

void Mutex::Lock() {
  REAL("_Z" NS "5Mutex4LockEv", void(Mutex*));
  Take(this, [&] { real(this); });
}
void Mutex::Unlock() {
  REAL("_Z" NS "5Mutex6UnlockEv", void(Mutex*));
  __tsan_release(this);
  const IgnoreReads ignore;
  real(this);
}
bool Mutex::TryLock() {
  REAL("_Z" NS "5Mutex7TryLockEv", bool(Mutex*));
  const bool locked = real(this);
  if (locked) __tsan_acquire(this);
  return locked;
}
void Mutex::ReaderLock() {
  REAL("_Z" NS "5Mutex10ReaderLockEv", void(Mutex*));
  Take(this, [&] { real(this); });
}
void Mutex::ReaderUnlock() {
  REAL("_Z" NS "5Mutex12ReaderUnlockEv", void(Mutex*));
  __tsan_release(this);
  const IgnoreReads ignore;
  real(this);
}
void Mutex::LockWhen(const Condition& condition) {
  REAL("_Z" NS "5Mutex8LockWhenERKNS0_9ConditionE", void(Mutex*, const Condition&));
  Take(this, [&] { real(this, condition); });
}
void Mutex::Await(const Condition& condition) {
  REAL("_Z" NS "5Mutex5AwaitERKNS0_9ConditionE", void(Mutex*, const Condition&));
  __tsan_release(this);
  Take(this, [&] { real(this, condition); });
}
bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  REAL("_Z" NS "5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE",
       bool(Mutex*, const Condition&, Duration));
  __tsan_release(this);
  return Take(this, [&] { return real(this, condition, timeout); });
}
bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  REAL("_Z" NS "5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE", bool(Mutex*, const Condition&, Time));
  __tsan_release(this);
  return Take(this, [&] { return real(this, condition, deadline); });
}

void CondVar::Wait(Mutex* mutex) {
  REAL("_Z" NS "7CondVar4WaitEPNS0_5MutexE", void(CondVar*, Mutex*));
  __tsan_release(mutex);
  Take(mutex, [&] { real(this, mutex); });
}
bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  REAL("_Z" NS "7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE", bool(CondVar*, Mutex*, Duration));
  __tsan_release(mutex);
  return Take(mutex, [&] { return real(this, mutex, timeout); });
}
bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  REAL("_Z" NS "7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE", bool(CondVar*, Mutex*, Time));
  __tsan_release(mutex);
  return Take(mutex, [&] { return real(this, mutex, deadline); });
}

void Notification::Notify() {
  REAL("_Z" NS "12Notification6NotifyEv", void(Notification*));
  __tsan_release(this);
  real(this);
}
void Notification::WaitForNotification() const {
  REAL("_ZNK4absl7debian312Notification19WaitForNotificationEv", void(const Notification*));
  real(this);
  __tsan_acquire(const_cast<Notification*>(this));
}
bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  REAL("_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE",
       bool(const Notification*, Duration));
  const bool notified = real(this, timeout);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

bool BlockingCounter::DecrementCount() {
  REAL("_Z" NS "15BlockingCounter14DecrementCountEv", bool(BlockingCounter*));
  __tsan_release(this);
  return real(this);
}
void BlockingCounter::Wait() {
  REAL("_Z" NS "15BlockingCounter4WaitEv", void(BlockingCounter*));
  real(this);
  __tsan_acquire(this);
}

}  // namespace absl
