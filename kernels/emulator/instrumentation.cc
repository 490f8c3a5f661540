// The functions that GCC's -fsanitize=thread calls before each memory access of the kernels
// (tools/bazel/cuda.bzl). The functions stand in for thread sanitizer's library and tell the race detector of
// the access. In a build under the real thread sanitizer this file is empty. The names are the compiler's.

#if !defined(__SANITIZE_THREAD__)

#include <cstdint>

#include "kernels/emulator/race_detector.h"

namespace {

using somnus::cuda_emulated::emulator::NoteAtomic;
using somnus::cuda_emulated::emulator::NoteRead;
using somnus::cuda_emulated::emulator::NoteWrite;

}  // namespace

#define HERE __builtin_return_address(0)

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_atomic_thread_fence(int) {}
void __tsan_read_range(void* p, unsigned long bytes) { NoteRead(p, static_cast<int64_t>(bytes), HERE); }
void __tsan_write_range(void* p, unsigned long bytes) { NoteWrite(p, static_cast<int64_t>(bytes), HERE); }

#define PLAIN(bytes)                                                         \
  void __tsan_read##bytes(void* p) { NoteRead(p, bytes, HERE); }             \
  void __tsan_write##bytes(void* p) { NoteWrite(p, bytes, HERE); }           \
  void __tsan_unaligned_read##bytes(void* p) { NoteRead(p, bytes, HERE); }   \
  void __tsan_unaligned_write##bytes(void* p) { NoteWrite(p, bytes, HERE); } \
  void __tsan_volatile_read##bytes(void* p) { NoteRead(p, bytes, HERE); }    \
  void __tsan_volatile_write##bytes(void* p) { NoteWrite(p, bytes, HERE); }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

// The compiler leaves the operation itself to these functions.
#define ATOMIC(bits, T)                                                                                \
  T __tsan_atomic##bits##_load(const volatile T* p, int) {                                             \
    NoteAtomic(const_cast<const T*>(p), bits / 8, HERE);                                               \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                       \
  }                                                                                                    \
  void __tsan_atomic##bits##_store(volatile T* p, T value, int) {                                      \
    NoteAtomic(const_cast<const T*>(p), bits / 8, HERE);                                               \
    __atomic_store_n(p, value, __ATOMIC_SEQ_CST);                                                      \
  }                                                                                                    \
  T __tsan_atomic##bits##_exchange(volatile T* p, T value, int) {                                      \
    NoteAtomic(const_cast<const T*>(p), bits / 8, HERE);                                               \
    return __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST);                                            \
  }                                                                                                    \
  T __tsan_atomic##bits##_fetch_add(volatile T* p, T value, int) {                                     \
    NoteAtomic(const_cast<const T*>(p), bits / 8, HERE);                                               \
    return __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST);                                             \
  }                                                                                                    \
  T __tsan_atomic##bits##_fetch_sub(volatile T* p, T value, int) {                                     \
    NoteAtomic(const_cast<const T*>(p), bits / 8, HERE);                                               \
    return __atomic_fetch_sub(p, value, __ATOMIC_SEQ_CST);                                             \
  }                                                                                                    \
  T __tsan_atomic##bits##_fetch_or(volatile T* p, T value, int) {                                      \
    NoteAtomic(const_cast<const T*>(p), bits / 8, HERE);                                               \
    return __atomic_fetch_or(p, value, __ATOMIC_SEQ_CST);                                              \
  }                                                                                                    \
  bool __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* expected, T value, int, int) {  \
    NoteAtomic(const_cast<const T*>(p), bits / 8, HERE);                                               \
    return __atomic_compare_exchange_n(p, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }                                                                                                    \
  bool __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* expected, T value, int, int) {    \
    NoteAtomic(const_cast<const T*>(p), bits / 8, HERE);                                               \
    return __atomic_compare_exchange_n(p, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
  }
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)

}  // extern "C"

#endif
