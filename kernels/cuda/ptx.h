#pragma once
// PTX and warp primitives of kernels; only the conversions of types.h contain PTX, too. Each has a host
// version in kernels/emulator/ptx.h with the same signature plus the place of the call; here are the device's
// version and the explanation of each function. Needs sm_80. "Fragment" layouts are the PTX ISA's, with g =
// lane / 4 and t = lane % 4.

#include <cstdint>

#include "kernels/cuda_types.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

constexpr uint32_t kFullMask = 0xffffffffu;
// The threads that an acquire or a release is for: threads of this device, or of other devices and the host,
// too.
enum class Scope { kGpu, kSys };

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE

#ifdef SOMNUS_CUDA_EMULATOR
#include "kernels/emulator/ptx.h"
#else

#define SOMNUS_PTX __device__ __forceinline__

namespace somnus::SOMNUS_CUDA_NAMESPACE {

// ---- Warps. Blocks are counted x fastest, 32 threads a warp. `mask`: the lanes that take part; all these
// lanes must call the same function with the same mask, and the caller's lane must be in the mask.

SOMNUS_PTX int LinearThreadId() {
  return static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}
SOMNUS_PTX int LaneId() { return LinearThreadId() % 32; }
SOMNUS_PTX int WarpId() { return LinearThreadId() / 32; }

// T of 4 or 8 bytes. A lane that would read beyond the warp keeps its own value (Down, Up); a value from a
// lane outside the mask is undefined.
template <typename T>
SOMNUS_PTX T ShflXor(T value, int lane_mask, uint32_t mask = kFullMask) {
  return __shfl_xor_sync(mask, value, lane_mask);
}
template <typename T>
SOMNUS_PTX T ShflDown(T value, int delta, uint32_t mask = kFullMask) {
  return __shfl_down_sync(mask, value, delta);
}
template <typename T>
SOMNUS_PTX T ShflUp(T value, int delta, uint32_t mask = kFullMask) {
  return __shfl_up_sync(mask, value, delta);
}
template <typename T>
SOMNUS_PTX T ShflIdx(T value, int lane, uint32_t mask = kFullMask) {
  return __shfl_sync(mask, value, lane);
}
// Combines the values of lanes that differ in the bits `from`, from / 2, ... 1 (`from`: a power of two up to
// 16, or 0 for no step): in each step a lane's value becomes op(value, the other lane's value), for each of
// kCount independent values. All 32 lanes must call with the same `from`. With a commutative op, all lanes of
// a group end with the same bits. The emulator makes all steps in one meeting of the warp, which costs a
// tenth of the time of single shuffles.
template <int kCount, typename T, typename Op>
SOMNUS_PTX void ButterflyEach(T (&values)[kCount], int from, const Op& op) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int bit = from; bit > 0; bit /= 2) values[i] = op(values[i], ShflXor(values[i], bit));
  }
}
template <typename T, typename Op>
SOMNUS_PTX T Butterfly(T value, int from, const Op& op) {
#pragma unroll
  for (int bit = from; bit > 0; bit /= 2) value = op(value, ShflXor(value, bit));
  return value;
}
// Bit i: lane i takes part and its predicate holds.
SOMNUS_PTX uint32_t Ballot(bool predicate, uint32_t mask = kFullMask) {
  return __ballot_sync(mask, predicate);
}
SOMNUS_PTX bool AnySync(bool predicate, uint32_t mask = kFullMask) {
  return __any_sync(mask, predicate) != 0;
}
SOMNUS_PTX bool AllSync(bool predicate, uint32_t mask = kFullMask) {
  return __all_sync(mask, predicate) != 0;
}
SOMNUS_PTX void SyncWarp(uint32_t mask = kFullMask) { __syncwarp(mask); }

// Barrier `id`, 1 to 15 (0 is __syncthreads): Sync waits until `threads` (a multiple of 32, whole warps) have
// called Sync or Arrive; Arrive does not wait.
SOMNUS_PTX void NamedBarrierSync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
SOMNUS_PTX void NamedBarrierArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- Tensor cores

SOMNUS_PTX uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Matrices of 8 x 8 16-bit elements from shared memory: lane 8 m + r gives the address (aligned to 16) of row
// r of matrix m; register m receives elements (g, 2 t) and (g, 2 t + 1) of matrix m, low half first; Trans:
// (2 t, g) and (2 t + 1, g). X2 takes the addresses of lanes 0 to 15 only, but give all other lanes a valid
// address, too.
SOMNUS_PTX void LdMatrixX4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
SOMNUS_PTX void LdMatrixX2(uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(SharedAddress(row))
               : "memory");
}
SOMNUS_PTX void LdMatrixX4Trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
}
SOMNUS_PTX void LdMatrixX2Trans(uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(SharedAddress(row))
               : "memory");
}

// d += a * b, T bf16 or f16, sums in f32; a warp together.
//   a [16][16], row-major: register r holds row g + 8 (r % 2), columns 2 t + 8 (r / 2) and the next,
//     low half first
//   b [16][8]: register r holds rows 2 t + 8 r and the next, column g
//   d [16][8]: value i is row g + 8 (i / 2), column 2 t + i % 2
template <typename T>
SOMNUS_PTX void Mma16816(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    static_assert(std::is_same_v<T, f16>);
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

// ---- Copies and loads. Addresses are aligned to 16 bytes unless a comment says otherwise.

// 16 bytes from global to shared memory, past L1; zeros when not valid (src is not read then, but must be a
// pointer into the same allocation). The bytes are there when a CpAsyncWait that covers their group has
// returned, and for other threads only after a later barrier.
SOMNUS_PTX void CpAsync16(void* dst, const void* src, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(dst)), "l"(src),
               "r"(valid ? 16 : 0)
               : "memory");
}
// The same for 4 bytes, aligned to 4.
SOMNUS_PTX void CpAsync4(void* dst, const void* src, bool valid = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(SharedAddress(dst)), "l"(src),
               "r"(valid ? 4 : 0)
               : "memory");
}
// Closes this thread's group of copies (maybe empty).
SOMNUS_PTX void CpAsyncCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all groups of this thread but the newest kPending.
template <int kPending>
SOMNUS_PTX void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Loads 16 bytes of memory that no one writes during the kernel.
SOMNUS_PTX uint4 LdGlobalNc16(const void* p) {
  uint4 v;
  asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
// The same for data that is read once: not kept in L1.
SOMNUS_PTX uint4 LdGlobalStream16(const void* p) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p));
  return v;
}
// The same, but issued in place, before a later GridDependencyWait. (The compiler may move loads of the nc
// kind behind the wait.)
SOMNUS_PTX uint4 LdGlobalEarly16(const void* p) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
SOMNUS_PTX void StGlobalStream16(void* p, uint4 v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

// ---- Memory order and atomics

#define SOMNUS_PTX_SCOPED(text, scope, ...)      \
  if constexpr (kScope == Scope::kGpu) {         \
    asm volatile(text ".gpu" scope __VA_ARGS__); \
  } else {                                       \
    asm volatile(text ".sys" scope __VA_ARGS__); \
  }

// T of 4 or 8 bytes, unsigned or signed.
template <Scope kScope = Scope::kGpu, typename T>
SOMNUS_PTX T LdAcquire(const T* p) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  if constexpr (sizeof(T) == 4) {
    uint32_t v;
    SOMNUS_PTX_SCOPED("ld.acquire", ".u32 %0, [%1];", : "=r"(v) : "l"(p) : "memory")
    return static_cast<T>(v);
  } else {
    uint64_t v;
    SOMNUS_PTX_SCOPED("ld.acquire", ".u64 %0, [%1];", : "=l"(v) : "l"(p) : "memory")
    return static_cast<T>(v);
  }
}
template <Scope kScope = Scope::kGpu, typename T>
SOMNUS_PTX void StRelease(T* p, std::type_identity_t<T> value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  if constexpr (sizeof(T) == 4) {
    SOMNUS_PTX_SCOPED("st.release", ".u32 [%0], %1;", ::"l"(p), "r"(static_cast<uint32_t>(value)) : "memory")
  } else {
    SOMNUS_PTX_SCOPED("st.release", ".u64 [%0], %1;", ::"l"(p), "l"(static_cast<uint64_t>(value)) : "memory")
  }
}

// Returns the previous value. Relaxed, device scope; T as in CUDA's atomics (int32_t, uint32_t; float for
// Add).
template <typename T>
SOMNUS_PTX T AtomicAdd(T* p, std::type_identity_t<T> value) {
  return atomicAdd(p, value);
}
template <typename T>
SOMNUS_PTX T AtomicMax(T* p, std::type_identity_t<T> value) {
  return atomicMax(p, value);
}
template <typename T>
SOMNUS_PTX T AtomicMin(T* p, std::type_identity_t<T> value) {
  return atomicMin(p, value);
}
template <typename T>
SOMNUS_PTX T AtomicOr(T* p, std::type_identity_t<T> value) {
  return atomicOr(p, value);
}
template <typename T>
SOMNUS_PTX T AtomicExch(T* p, std::type_identity_t<T> value) {
  return atomicExch(p, value);
}
template <typename T>
SOMNUS_PTX T AtomicCas(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> desired) {
  return atomicCAS(p, expected, desired);
}
// Acquires and releases: a counter of blocks that have arrived. uint32_t.
template <Scope kScope = Scope::kGpu, typename T>
SOMNUS_PTX T AtomicAddAcqRel(T* p, std::type_identity_t<T> value) {
  static_assert(sizeof(T) == 4);
  uint32_t old;
  SOMNUS_PTX_SCOPED("atom.add.acq_rel", ".u32 %0, [%1], %2;",
                    : "=r"(old)
                    : "l"(p), "r"(static_cast<uint32_t>(value))
                    : "memory")
  return static_cast<T>(old);
}
#undef SOMNUS_PTX_SCOPED

// ---- Arithmetic

// 2^x and 1 / x by the special function unit, with errors of about 2^-22 relative (PTX ISA); 2^-inf is 0.
SOMNUS_PTX float Exp2Approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
SOMNUS_PTX float RcpApprox(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
SOMNUS_PTX void NanoSleep(unsigned ns) { __nanosleep(ns); }
// Nanoseconds of a clock that all kernels see. The clock moves in steps of a microsecond or so, and may step
// back.
SOMNUS_PTX uint64_t GlobalTimer() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}
SOMNUS_PTX int PopCount(uint32_t x) { return __popc(x); }
SOMNUS_PTX int CountLeadingZeros(uint32_t x) { return __clz(static_cast<int>(x)); }
// Lowest set bit + 1; 0 when none is set.
SOMNUS_PTX int FindFirstSet(uint32_t x) { return __ffs(static_cast<int>(x)); }
SOMNUS_PTX uint32_t MulHi(uint32_t a, uint32_t b) { return __umulhi(a, b); }
// a * b, rounded: never a part of a fused multiply-add.
SOMNUS_PTX float MulRn(float a, float b) { return __fmul_rn(a, b); }

// Programmatic dependent launch: Wait until the kernel before has finished (its writes are seen); Launch lets
// the kernel behind start. Without the launch attribute both do nothing.
SOMNUS_PTX void GridDependencyWait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
SOMNUS_PTX void GridDependencyLaunch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE

#undef SOMNUS_PTX
#endif  // SOMNUS_CUDA_EMULATOR

namespace somnus::SOMNUS_CUDA_NAMESPACE {

// For a ring of two to four stages, each loaded as one group, `stages - 1` ahead: waits until the oldest
// stage is there.
__device__ __forceinline__ void WaitForStage(int stages) {
  if (stages == 2) {
    CpAsyncWait<0>();
  } else if (stages == 3) {
    CpAsyncWait<1>();
  } else {
    CpAsyncWait<2>();
  }
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
