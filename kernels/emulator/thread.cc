// The functions that a running thread calls: kernels/emulator/device.h.

#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/emulator/barrier_sites.h"
#include "kernels/emulator/grid.h"

namespace somnus::cuda_emulated::emulator {
namespace {

std::atomic<uint64_t> progress{0};

Thread& Current(const char* what) {
  Thread* const thread = CurrentThread();
  if (thread == nullptr) Die(absl::StrCat(what, " was called outside a kernel"));
  return *thread;
}

}  // namespace

void Fail(const char* message, const Site& site) {
  const Thread* const thread = CurrentThread();
  if (thread == nullptr) Die(absl::StrCat(message, " at ", Describe(site)));
  Die(absl::StrCat(thread->block->grid->Describe(), ", block ", Describe(thread->block->index), ", thread ",
                   Describe(thread->index), ": ", message, " at ", Describe(site)));
}

uint64_t ProgressCount() { return progress.load(std::memory_order_relaxed); }

void NoteProgress() {
  progress.fetch_add(1, std::memory_order_relaxed);
  if (Thread* const thread = CurrentThread()) thread->block->idle_rounds = 0;
}

void* SharedMemoryOf(int64_t bytes) {
  const Thread& thread = Current("SharedStorage");
  const int64_t given = thread.block->grid->launch().shared_bytes;
  if (bytes > given) {
    Fail(absl::StrFormat("the kernel uses %d bytes of shared memory, the launch gave %d", bytes, given)
             .c_str(),
         Site::current());
  }
  return thread.block->shared;
}

void Yield(bool spinning) {
  Thread& thread = Current("a yielding function");
  Block& block = *thread.block;
  // An atomic that does not wait for anyone is a place where other threads may come in between, now and then.
  if (!spinning && block.random.Below(4) != 0) return;
  if (!spinning) block.idle_rounds = 0;
  block.yielded.push_back(&thread);
  thread.fiber.Suspend();
}

void SyncThreads(const Site& site) {
  Thread& thread = Current("__syncthreads");
  Block& block = *thread.block;
  Barrier& barrier = block.barriers[0];
  if (!barrier.waiting.empty()) {
    const Thread& first = *barrier.waiting.front();
    const char* const file = first.site.file_name();
    if (first.site.line() != site.line() ||
        (file != site.file_name() && std::strcmp(file, site.file_name()) != 0)) {
      Fail(absl::StrCat("divergent __syncthreads: thread ", Describe(first.index), " of the block waits at ",
                        Describe(first.site), ", this one")
               .c_str(),
           site);
    }
  }
  ++barrier.arrived;
  barrier.waiting.push_back(&thread);
  // Set before the release, which clears waits_for.
  thread.waits_for = "__syncthreads";
  thread.site = site;
  block.CheckBarrier0();
  thread.fiber.Suspend();
}

void NamedBarrier(int id, int threads, bool wait, const Site& site) {
  Thread& thread = Current("NamedBarrierSync");
  Block& block = *thread.block;
  if (id < 1 || id > 15) Fail(absl::StrFormat("named barrier %d: it may be 1 to 15", id).c_str(), site);
  if (threads <= 0 || threads % 32 != 0 ||
      threads > static_cast<int>((block.threads.size() + 31) / 32 * 32)) {
    Fail(
        absl::StrFormat("named barrier %d of %d threads: not whole warps of this block", id, threads).c_str(),
        site);
  }
  Barrier& barrier = block.barriers[id];
  if (barrier.arrived == 0) barrier.expected = threads;
  if (barrier.expected != threads) {
    Fail(absl::StrFormat("named barrier %d: %d threads here, %d elsewhere", id, threads, barrier.expected)
             .c_str(),
         site);
  }
  ++barrier.arrived;
  if (wait) {
    barrier.waiting.push_back(&thread);
    thread.waits_for = "NamedBarrierSync";
    thread.site = site;
    thread.barrier = id;
  }
  if (barrier.arrived == threads) block.Release(&barrier);
  if (wait) thread.fiber.Suspend();
}

void Meet(uint32_t mask, const char* what, MeetFn meet, void* payload, const Site& site) {
  Thread& thread = Current(what);
  Block& block = *thread.block;
  const int number = thread.linear / 32;
  Warp& warp = block.warps[static_cast<size_t>(number)];
  const uint32_t bit = 1u << (thread.linear % 32);
  if ((mask & bit) == 0)
    Fail(absl::StrFormat("%s with mask 0x%08x, which leaves out this lane", what, mask).c_str(), site);
  if ((mask & ~warp.present) != 0) {
    Fail(absl::StrFormat("%s with mask 0x%08x, but the warp has lanes 0x%08x", what, mask, warp.present)
             .c_str(),
         site);
  }
  if ((mask & warp.exited) != 0) {
    Fail(absl::StrFormat("%s with mask 0x%08x, but lanes 0x%08x have ended", what, mask, warp.exited).c_str(),
         site);
  }
  thread.mask = mask;
  thread.payload = payload;
  thread.waits_for = what;
  thread.site = site;
  warp.meeting |= bit;
  bool complete = (warp.meeting & mask) == mask;
  void* payloads[32];  // of a whole meeting
  for (int i = 0; i < 32 && complete; ++i) {
    payloads[i] = nullptr;
    if ((mask >> i & 1) == 0) continue;
    const Thread& other = *block.lane(number, i);
    complete = other.mask == mask;
    payloads[i] = other.payload;
    if (complete && other.waits_for != what && std::strcmp(other.waits_for, what) != 0) {
      Fail(absl::StrFormat("%s, but lane %d is in %s at %s with the same mask", what, i, other.waits_for,
                           Describe(other.site))
               .c_str(),
           site);
    }
  }
  if (complete) {
    thread.unobserved = true;
    meet(payloads, mask);
    thread.unobserved = false;
    block.idle_rounds = 0;
    warp.meeting &= ~mask;
    std::vector<Thread*> released;
    for (int i = 0; i < 32; ++i) {
      if ((mask >> i & 1) == 0) continue;
      block.lane(number, i)->mask = 0;
      released.push_back(block.lane(number, i));
    }
    block.MakeRunnable(released);
  }
  thread.fiber.Suspend();
}

void OrderLanes(void* const*, uint32_t mask) {
  const Thread& thread = Current("SyncWarp");
  Block& block = *thread.block;
  const int number = thread.linear / 32;
  const Warp& warp = block.warps[static_cast<size_t>(number)];
  // A SyncWarp of a part of the warp is not modelled, and orders nothing.
  if (block.grid->races() != nullptr && mask == (warp.present & ~warp.exited))
    block.barrier_order.PassWarpBarrier(number, BarrierSite(thread.site));
}

// ---- Programmatic dependent launch

void LetNextStart() { Current("GridDependencyLaunch").block->lets_next_start = true; }

void AwaitPrevious(const Site& site) {
  Thread& thread = Current("GridDependencyWait");
  if (thread.block->grid->previous_ended()) return;
  thread.waits_for = "GridDependencyWait";
  thread.site = site;
  thread.block->awaiting_previous.push_back(&thread);
  thread.fiber.Suspend();
}

// ---- cp.async

void CopyAsync(void* dst, const void* src, int bytes, bool valid, const char* what, const Site& site) {
  const void* const code = __builtin_return_address(0);
  Thread& thread = Current(what);
  const auto check = [&](bool holds, const char* fault) {
    if (!holds) Fail(absl::StrCat(what, ": ", fault).c_str(), site);
  };
  const auto aligned = [bytes](const void* p) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; };
  const int64_t shared_bytes = thread.block->grid->launch().shared_bytes;
  char* const to = static_cast<char*>(dst);
  check(aligned(dst), "the destination is not aligned to the copy's bytes");
  check(to >= thread.block->shared && to + bytes <= thread.block->shared + shared_bytes,
        "the destination is not in the block's shared memory");
  const char* const from = static_cast<const char*>(src);
  if (valid) {
    check(aligned(src), "the source is not aligned to the copy's bytes");
    // Address sanitizer shall find a bad source here rather than at the wait.
    static_cast<void>(*static_cast<const volatile char*>(from));
    static_cast<void>(*static_cast<const volatile char*>(from + bytes - 1));
  }
  // Undefined until the wait. A copy may read and write at any time between the two.
  if (valid) NoteRead(src, bytes, code);
  NoteWrite(dst, bytes, code);
  std::memset(to, 0xff, static_cast<size_t>(bytes));
  thread.copies.push_back({to, valid ? from : nullptr, bytes, thread.open_group});
}

void CommitCopies() { ++Current("CpAsyncCommit").open_group; }

void WaitCopies(int pending) {
  const void* const code = __builtin_return_address(0);
  Thread& thread = Current("CpAsyncWait");
  const int last = thread.open_group - 1 - pending;  // groups up to here are performed
  auto it = thread.copies.begin();
  for (; it != thread.copies.end() && it->group <= last; ++it) {
    if (it->src != nullptr) NoteRead(it->src, it->bytes, code);
    NoteWrite(it->dst, it->bytes, code);
    if (it->src != nullptr) {
      std::memcpy(it->dst, it->src, static_cast<size_t>(it->bytes));
    } else {
      std::memset(it->dst, 0, static_cast<size_t>(it->bytes));
    }
  }
  thread.copies.erase(thread.copies.begin(), it);
}

}  // namespace somnus::cuda_emulated::emulator
