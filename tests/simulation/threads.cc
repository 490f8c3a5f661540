// Threads, locks and clocks of the simulation, under the names of pthreads and Abseil. The linker takes these
// definitions before the definitions in libraries, also for code in libraries (std::thread, std::mutex,
// std::condition_variable, absl::Notification). Without a world, as before main, locks do nothing: there is
// one thread.

#include <pthread.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/simulation/world.h"

namespace {

using somnus::simulation::World;

constexpr int64_t kWallSeconds = 1'700'000'000;  // of the world's beginning
constexpr int64_t kMonotonicSeconds = 1'000;

// How far `clock` is ahead of the world's clock.
absl::Duration Offset(clockid_t clock) {
  if (clock != CLOCK_REALTIME) return absl::Seconds(kMonotonicSeconds);
  const World* world = World::current();
  return absl::Seconds(kWallSeconds) + (world == nullptr ? absl::ZeroDuration() : world->wall_offset());
}

bool Simulated() { return World::current() != nullptr && World::current()->on_fiber(); }

// Takes the lock whose word is `word`: 0 for a free lock, -1 for a writer, else the number of readers.
template <typename Word>
void Take(Word* word, bool shared) {
  if (!Simulated()) return;
  while (shared ? *word < 0 : *word != 0) World::current()->Block(word);
  *word = shared ? *word + 1 : -1;
}

template <typename Word>
bool TryTake(Word* word, bool shared) {
  if (!Simulated()) return true;
  if (shared ? *word < 0 : *word != 0) return false;
  *word = shared ? *word + 1 : -1;
  return true;
}

// The fibers that have released the lock until a condition has come true block here.
const void* WaitersOf(const void* word) { return static_cast<const char*>(word) + 1; }

// `changes`: the state under the lock may have changed since the lock was taken.
template <typename Word>
void Give(Word* word, bool changes = true) {
  if (!Simulated()) return;
  *word = *word < 0 ? 0 : *word - 1;
  World::current()->Wake(word);
  if (changes) World::current()->Wake(WaitersOf(word));
}

int* WordOf(pthread_mutex_t* mutex) { return &mutex->__data.__lock; }

int WaitUntil(pthread_cond_t* condition, pthread_mutex_t* mutex, absl::Duration deadline) {
  if (!Simulated()) std::abort();
  Give(WordOf(mutex));
  const bool woken = World::current()->Block(condition, deadline);
  Take(WordOf(mutex), /*shared=*/false);
  return woken ? 0 : ETIMEDOUT;
}

}  // namespace

extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  Take(WordOf(mutex), /*shared=*/false);
  return 0;
}
int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  return TryTake(WordOf(mutex), /*shared=*/false) ? 0 : EBUSY;
}
int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  Give(WordOf(mutex));
  return 0;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  return WaitUntil(condition, mutex, absl::InfiniteDuration());
}
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* deadline) {
  return WaitUntil(condition, mutex, absl::DurationFromTimespec(*deadline) - Offset(clock));
}
int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* deadline) {
  return pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, deadline);
}
int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  if (World::current() != nullptr) World::current()->Wake(condition);  // a wake-up too many is allowed
  return 0;
}
int pthread_cond_broadcast(pthread_cond_t* condition) noexcept { return pthread_cond_signal(condition); }

int pthread_create(pthread_t* thread, const pthread_attr_t*, void* (*body)(void*), void* argument) noexcept {
  if (!Simulated()) return EAGAIN;
  *thread =
      World::current()->Spawn(World::current()->current_process(), [body, argument] { body(argument); });
  return 0;
}
int pthread_join(pthread_t thread, void**) {
  World::current()->Join(thread);
  return 0;
}
int pthread_detach(pthread_t) noexcept { return 0; }

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const World* world = World::current();
  *time = absl::ToTimespec(Offset(clock) + (world == nullptr ? absl::ZeroDuration() : world->now()));
  return 0;
}

pid_t getpid() noexcept {
  const int process = Simulated() ? World::current()->current_process() : 0;
  return process > 0 ? process : static_cast<pid_t>(syscall(SYS_getpid));
}
ssize_t getrandom(void* bytes, size_t count, unsigned) {
  static somnus::simulation::Random outside(1);
  somnus::simulation::Random& random = Simulated() ? World::current()->random() : outside;
  for (size_t i = 0; i < count; ++i) static_cast<unsigned char*>(bytes)[i] = random.Next() & 0xFF;
  return static_cast<ssize_t>(count);
}

}  // extern "C"

namespace absl {
ABSL_NAMESPACE_BEGIN

namespace {

std::intptr_t* WordOf(std::atomic<std::intptr_t>* word) { return reinterpret_cast<std::intptr_t*>(word); }

// Unlocks `word` until `condition` may have come true. False: `condition` is false, and the deadline has
// passed. A fiber that has only looked at a condition is no reason for other fibers to look at their
// conditions.
bool AwaitOn(std::intptr_t* word, const Condition& condition, absl::Duration deadline) {
  for (bool changes = true; !condition.Eval(); changes = false) {
    const bool shared = *word > 0;
    if (!Simulated() || World::current()->now() >= deadline) return false;
    Give(word, changes);
    World::current()->Block(WaitersOf(word), deadline);
    Take(word, shared);
  }
  return true;
}

absl::Duration Deadline(absl::Time time) { return World::current()->now() + (time - absl::Now()); }
absl::Duration Deadline(absl::Duration timeout) {
  return World::current()->now() + std::max(timeout, absl::ZeroDuration());
}

}  // namespace

// Abseil's own reads the processor's counter of cycles.
int64_t GetCurrentTimeNanos() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return absl::ToInt64Nanoseconds(absl::DurationFromTimespec(now));
}
Time Now() { return FromUnixNanos(GetCurrentTimeNanos()); }

Mutex::~Mutex() {}
// Other fibers go first now and then at these locks alone: pthreads' locks are also taken by libraries, some
// at the first use only, and a seed must do the same in every process.
void Mutex::Lock() {
  if (Simulated()) World::current()->MaybeYield();
  Take(WordOf(&mu_), /*shared=*/false);
}
void Mutex::Unlock() { Give(WordOf(&mu_)); }
bool Mutex::TryLock() { return TryTake(WordOf(&mu_), /*shared=*/false); }
void Mutex::ReaderLock() { Take(WordOf(&mu_), /*shared=*/true); }
void Mutex::ReaderUnlock() { Give(WordOf(&mu_)); }
bool Mutex::ReaderTryLock() { return TryTake(WordOf(&mu_), /*shared=*/true); }
void Mutex::Await(const Condition& condition) { AwaitOn(WordOf(&mu_), condition, absl::InfiniteDuration()); }
bool Mutex::AwaitWithTimeout(const Condition& condition, absl::Duration timeout) {
  return AwaitOn(WordOf(&mu_), condition, Deadline(timeout));
}
bool Mutex::AwaitWithDeadline(const Condition& condition, absl::Time deadline) {
  return AwaitOn(WordOf(&mu_), condition, Deadline(deadline));
}
void Mutex::LockWhen(const Condition& condition) {
  Lock();
  Await(condition);
}
bool Mutex::LockWhenWithTimeout(const Condition& condition, absl::Duration timeout) {
  Lock();
  return AwaitWithTimeout(condition, timeout);
}
bool Mutex::LockWhenWithDeadline(const Condition& condition, absl::Time deadline) {
  Lock();
  return AwaitWithDeadline(condition, deadline);
}
void Mutex::ReaderLockWhen(const Condition& condition) {
  ReaderLock();
  Await(condition);
}

ABSL_NAMESPACE_END
}  // namespace absl
