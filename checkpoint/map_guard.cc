#include "checkpoint/map_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>

namespace somnus {

struct MapGuard::Slot {
  std::atomic<bool> used{false};
  std::atomic<bool> lost{false};
  std::atomic<uintptr_t> begin{0}, end{0};  // empty while not watching
};

// The state that the signal handler reads: atomics in static storage, since nothing else is safe there.
struct MapGuard::Registry {
  static constexpr size_t kMaxMaps = 4096;  // a large checkpoint has a few hundred files

  static std::array<Slot, kMaxMaps> slots;
  static struct sigaction previous;
  static uintptr_t page_mask;

  static void Install() {
    page_mask = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)) - 1;
    struct sigaction action = {};
    action.sa_sigaction = &OnBusError;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &previous);
  }

  // Puts zeros from the page at `address` to the end of the map: when a file shrinks, all that follows is
  // lost, too.
  static bool Replace(uintptr_t address) {
    for (Slot& slot : slots) {
      const uintptr_t begin = slot.begin.load(), end = slot.end.load();
      if (address < begin || address >= end) continue;
      const uintptr_t page = address & ~page_mask, stop = (end + page_mask) & ~page_mask;
      slot.lost.store(true);
      void* const at = reinterpret_cast<void*>(page);
      return mmap(at, stop - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    }
    return false;
  }

  static void OnBusError(int signal, siginfo_t* info, void* context) {
    const int saved_errno = errno;
    const bool replaced = Replace(reinterpret_cast<uintptr_t>(info->si_addr));
    errno = saved_errno;
    if (replaced) return;
    if ((previous.sa_flags & SA_SIGINFO) != 0) {
      previous.sa_sigaction(signal, info, context);
    } else if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
      // On return the instruction faults again, now without this handler.
      sigaction(SIGBUS, &previous, nullptr);
    } else {
      previous.sa_handler(signal);
    }
  }
};

std::array<MapGuard::Slot, MapGuard::Registry::kMaxMaps> MapGuard::Registry::slots;
struct sigaction MapGuard::Registry::previous = {};
uintptr_t MapGuard::Registry::page_mask = 0;

MapGuard::MapGuard(const void* begin, size_t bytes) {
  static std::once_flag once;
  std::call_once(once, &Registry::Install);
  for (Slot& slot : Registry::slots) {
    if (slot.used.load(std::memory_order_relaxed) || slot.used.exchange(true)) continue;
    slot.lost.store(false);
    slot.begin.store(reinterpret_cast<uintptr_t>(begin));
    slot.end.store(reinterpret_cast<uintptr_t>(begin) + bytes);
    slot_ = &slot;
    return;
  }
}

MapGuard::~MapGuard() {
  if (slot_ == nullptr) return;
  slot_->end.store(0);
  slot_->begin.store(0);
  slot_->used.store(false);
}

bool MapGuard::lost() const { return slot_ != nullptr && slot_->lost.load(); }

}  // namespace somnus
