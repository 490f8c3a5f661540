#pragma once
// The emulator's interface for device code: the indices of the running thread, barriers, and the meeting of a
// warp's lanes, on which the host versions of PTX (emulator/ptx.h) are built. Callable only inside a kernel.
//
// A thread is a fiber. A thread runs until it meets other threads (a barrier, a warp's collective) or gives
// way (a load with acquire semantics, an atomic, nanosleep); the next thread is drawn from the seed. These
// functions take the place of the call, so that a message can name the place and so that threads which meet
// at different places are detected.

#include <cstddef>
#include <cstdint>
#include <source_location>

#include "kernels/emulator/vector_types.h"

namespace somnus::cuda_emulated {

// The indices of the running thread.
inline constinit thread_local uint3 threadIdx{};
inline constinit thread_local uint3 blockIdx{};
inline constinit thread_local dim3 blockDim{};
inline constinit thread_local dim3 gridDim{};
inline constexpr int warpSize = 32;

namespace emulator {

using Site = std::source_location;

// Thread number within the block, x fastest.
inline int LinearThread() {
  return static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}

// The dynamic shared memory of the running block. Aborts when the launch gave less than `bytes`.
void* SharedMemoryOf(int64_t bytes);

// Barrier 0: all threads of the block that have not exited; all must come from one place of the source.
void SyncThreads(const Site& site);
// Barriers 1 to 15: until `threads` (a multiple of 32) have synced or arrived.
void NamedBarrier(int id, int threads, bool wait, const Site& site);

// The lanes of `mask` meet; when the last lane has come, `meet` runs once for all lanes with each lane's
// payload (nullptr outside the mask), then all go on. Aborts for a lane outside its own mask, for a mask with
// exited or absent lanes, for different `what` under one mask, and for lanes that never come.
using MeetFn = void (*)(void* const* payloads, uint32_t mask);
void Meet(uint32_t mask, const char* what, MeetFn meet, void* payload, const Site& site);
// A MeetFn: orders the lanes' earlier accesses to memory before their later accesses.
void OrderLanes(void* const* payloads, uint32_t mask);

// Gives way: other threads may run now. `spinning`: the caller may be waiting for a different block or grid.
void Yield(bool spinning);
// Notes a change of memory on which other threads may spin.
void NoteProgress();

// Programmatic dependent launch: waits until the previous kernel has ended; lets the next kernel start once
// every block has said so or ended.
void AwaitPrevious(const Site& site);
void LetNextStart();

// cp.async: the `bytes` (4 or 16) at dst are poisoned now and copied when a wait covers the copy's group;
// zeros when not valid. what: the caller's name.
void CopyAsync(void* dst, const void* src, int bytes, bool valid, const char* what, const Site& site);
void CommitCopies();
// Performs all groups but the newest `pending`.
void WaitCopies(int pending);

// NoteRowRead and NoteAcquire are for the race detector. The running thread reads the 16 bytes of a matrix
// row through its warp. The running thread has read a flag with acquire semantics.
void NoteRowRead(const void* row);
void NoteAcquire();

// Prints the running kernel, block and thread with the message, and aborts the process.
[[noreturn]] void Fail(const char* message, const Site& site);
// Aborts unless p is aligned to `alignment` (a power of two).
inline void CheckAligned(const void* p, size_t alignment, const char* what, const Site& site) {
  if (reinterpret_cast<uintptr_t>(p) % alignment != 0) Fail(what, site);
}

}  // namespace emulator

inline void __syncthreads(const emulator::Site& site = emulator::Site::current()) {
  emulator::SyncThreads(site);
}

}  // namespace somnus::cuda_emulated
