#pragma once
// Host versions of kernels/cuda/ptx.h, which explains each function. Each follows the layout that PTX
// documents. Included by that file alone.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda_types.h"
#include "kernels/emulator/device.h"

namespace somnus::cuda_emulated {

using emulator::Site;

// ---- Warps

inline int LaneId() { return emulator::LinearThread() % 32; }
inline int WarpId() { return emulator::LinearThread() / 32; }

namespace emulator {

template <typename T>
struct ShuffleLane {
  T value;
  T result;
  int source;  // the lane that is read; out of the mask: poison
};

template <typename T>
void MeetShuffle(void* const* payloads, uint32_t mask) {
  for (int i = 0; i < 32; ++i) {
    if (payloads[i] == nullptr) continue;
    auto* lane = static_cast<ShuffleLane<T>*>(payloads[i]);
    const bool there = lane->source >= 0 && lane->source < 32 && (mask >> lane->source & 1) != 0;
    // Undefined on the device.
    if (!there)
      std::memset(static_cast<void*>(&lane->result), 0xff, sizeof(T));
    else
      lane->result = static_cast<ShuffleLane<T>*>(payloads[lane->source])->value;
  }
}

template <typename T>
T Shuffle(T value, int source, uint32_t mask, const char* what, const Site& site) {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  ShuffleLane<T> lane{value, value, source};
  Meet(mask, what, &MeetShuffle<T>, &lane, site);
  return lane.result;
}

template <typename T, typename Op>
struct ButterflyLane {
  T* values;
  int count;
  int from;
  const Op* op;
};

template <typename T, typename Op>
void MeetButterfly(void* const* payloads, uint32_t) {
  const auto lane = [&](int i) { return static_cast<ButterflyLane<T, Op>*>(payloads[i]); };
  const int count = lane(0)->count, from = lane(0)->from;
  for (int i = 1; i < 32; ++i) {
    if (lane(i)->from != from) Fail("the lanes of a butterfly differ in its first bit", Site::current());
  }
  for (int j = 0; j < count; ++j) {
    for (int bit = from; bit > 0; bit /= 2) {
      T before[32];
      for (int i = 0; i < 32; ++i) before[i] = lane(i)->values[j];
      for (int i = 0; i < 32; ++i) lane(i)->values[j] = (*lane(i)->op)(before[i], before[i ^ bit]);
    }
  }
}

struct VoteLane {
  bool predicate;
  uint32_t ballot;
};

inline void MeetVote(void* const* payloads, uint32_t mask) {
  uint32_t ballot = 0;
  for (int i = 0; i < 32; ++i) {
    if (payloads[i] != nullptr && static_cast<VoteLane*>(payloads[i])->predicate) ballot |= 1u << i;
  }
  for (int i = 0; i < 32; ++i) {
    if (payloads[i] != nullptr) static_cast<VoteLane*>(payloads[i])->ballot = ballot;
  }
}

inline uint32_t Vote(bool predicate, uint32_t mask, const Site& site) {
  VoteLane lane{predicate, 0};
  Meet(mask, "a vote", &MeetVote, &lane, site);
  return lane.ballot;
}

}  // namespace emulator

template <typename T>
T ShflXor(T value, int lane_mask, uint32_t mask = kFullMask, const Site& site = Site::current()) {
  return emulator::Shuffle(value, LaneId() ^ lane_mask, mask, "ShflXor", site);
}
template <typename T>
T ShflDown(T value, int delta, uint32_t mask = kFullMask, const Site& site = Site::current()) {
  const int source = LaneId() + delta;
  return emulator::Shuffle(value, source > 31 ? LaneId() : source, mask, "ShflDown", site);
}
template <typename T>
T ShflUp(T value, int delta, uint32_t mask = kFullMask, const Site& site = Site::current()) {
  const int source = LaneId() - delta;
  return emulator::Shuffle(value, source < 0 ? LaneId() : source, mask, "ShflUp", site);
}
template <typename T>
T ShflIdx(T value, int lane, uint32_t mask = kFullMask, const Site& site = Site::current()) {
  return emulator::Shuffle(value, lane & 31, mask, "ShflIdx", site);
}

template <int kCount, typename T, typename Op>
void ButterflyEach(T (&values)[kCount], int from, const Op& op, const Site& site = Site::current()) {
  T met[kCount];  // a lane's own, so that the steps are no accesses of `values` that the race detector sees
  for (int i = 0; i < kCount; ++i) met[i] = values[i];
  emulator::ButterflyLane<T, Op> lane{met, kCount, from, &op};
  emulator::Meet(kFullMask, "a butterfly", &emulator::MeetButterfly<T, Op>, &lane, site);
  for (int i = 0; i < kCount; ++i) values[i] = met[i];
}
template <typename T, typename Op>
T Butterfly(T value, int from, const Op& op, const Site& site = Site::current()) {
  T values[1] = {value};
  ButterflyEach(values, from, op, site);
  return values[0];
}

inline uint32_t Ballot(bool predicate, uint32_t mask = kFullMask, const Site& site = Site::current()) {
  return emulator::Vote(predicate, mask, site);
}
inline bool AnySync(bool predicate, uint32_t mask = kFullMask, const Site& site = Site::current()) {
  return emulator::Vote(predicate, mask, site) != 0;
}
inline bool AllSync(bool predicate, uint32_t mask = kFullMask, const Site& site = Site::current()) {
  return emulator::Vote(predicate, mask, site) == mask;
}
inline void SyncWarp(uint32_t mask = kFullMask, const Site& site = Site::current()) {
  emulator::Meet(mask, "SyncWarp", &emulator::OrderLanes, nullptr, site);
}

inline void NamedBarrierSync(int id, int threads, const Site& site = Site::current()) {
  emulator::NamedBarrier(id, threads, true, site);
}
inline void NamedBarrierArrive(int id, int threads, const Site& site = Site::current()) {
  emulator::NamedBarrier(id, threads, false, site);
}

// ---- Tensor cores

namespace emulator {

struct LdMatrixLane {
  const void* row;  // of lane i: row i % 8 of matrix i / 8
  uint32_t* registers;
};

// Matrix m of 8 x 8 16-bit elements: row r at the address of lane 8 m + r. Lane l receives in register m the
// elements (l / 4, 2 (l % 4)) and its right neighbour; transposed, (2 (l % 4), l / 4) and the element below.
template <int kMatrices, bool kTrans>
void MeetLdMatrix(void* const* payloads, uint32_t) {
  for (int m = 0; m < kMatrices; ++m) {
    uint16_t matrix[8][8];
    for (int r = 0; r < 8; ++r)
      std::memcpy(matrix[r], static_cast<LdMatrixLane*>(payloads[8 * m + r])->row, 16);
    for (int lane = 0; lane < 32; ++lane) {
      const int i = lane / 4, j = 2 * (lane % 4);
      const uint32_t lo = kTrans ? matrix[j][i] : matrix[i][j];
      const uint32_t hi = kTrans ? matrix[j + 1][i] : matrix[i][j + 1];
      static_cast<LdMatrixLane*>(payloads[lane])->registers[m] = lo | hi << 16;
    }
  }
}

template <int kMatrices, bool kTrans>
void LdMatrix(uint32_t* registers, const void* row, const Site& site) {
  if (LaneId() < 8 * kMatrices) {
    CheckAligned(row, 16, "LdMatrix: the row's address is not aligned to 16 bytes", site);
    NoteRowRead(row);
  }
  LdMatrixLane lane{row, registers};
  Meet(kFullMask, kTrans ? "LdMatrixTrans" : "LdMatrix", &MeetLdMatrix<kMatrices, kTrans>, &lane, site);
}

struct MmaLane {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
};

// Fragments of m16n8k16, with g = lane / 4 and t = lane % 4 (PTX ISA, "Matrix fragments for mma.m16n8k16"):
//   A [16][16]: register r holds row g + 8 (r % 2), columns 2 t + 8 (r / 2) and the next
//   B [16][8]:  register r holds rows 2 t + 8 r and the next, column g
//   D [16][8]:  value i is row g + 8 (i / 2), column 2 t + i % 2
template <typename T>
void MeetMma16816(void* const* payloads, uint32_t) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto* own = static_cast<const MmaLane*>(payloads[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r) {
      const float2 x = Unpack2<T>(own->a[r]);
      a[g + 8 * (r % 2)][2 * t + 8 * (r / 2)] = x.x;
      a[g + 8 * (r % 2)][2 * t + 8 * (r / 2) + 1] = x.y;
    }
    for (int r = 0; r < 2; ++r) {
      const float2 x = Unpack2<T>(own->b[r]);
      b[2 * t + 8 * r][g] = x.x;
      b[2 * t + 8 * r + 1][g] = x.y;
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const auto* own = static_cast<const MmaLane*>(payloads[lane]);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
      float sum = own->d[i];
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      own->d[i] = sum;
    }
  }
}

}  // namespace emulator

inline void LdMatrixX4(uint32_t (&r)[4], const void* row, const Site& site = Site::current()) {
  emulator::LdMatrix<4, false>(r, row, site);
}
inline void LdMatrixX2(uint32_t (&r)[2], const void* row, const Site& site = Site::current()) {
  emulator::LdMatrix<2, false>(r, row, site);
}
inline void LdMatrixX4Trans(uint32_t (&r)[4], const void* row, const Site& site = Site::current()) {
  emulator::LdMatrix<4, true>(r, row, site);
}
inline void LdMatrixX2Trans(uint32_t (&r)[2], const void* row, const Site& site = Site::current()) {
  emulator::LdMatrix<2, true>(r, row, site);
}

template <typename T>
void Mma16816(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
              const Site& site = Site::current()) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  emulator::MmaLane lane{d, a, b};
  emulator::Meet(kFullMask, "Mma16816", &emulator::MeetMma16816<T>, &lane, site);
}

// ---- Copies and loads

inline void CpAsync16(void* dst, const void* src, bool valid = true, const Site& site = Site::current()) {
  emulator::CopyAsync(dst, src, 16, valid, "CpAsync16", site);
}
inline void CpAsync4(void* dst, const void* src, bool valid = true, const Site& site = Site::current()) {
  emulator::CopyAsync(dst, src, 4, valid, "CpAsync4", site);
}
inline void CpAsyncCommit() { emulator::CommitCopies(); }
template <int kPending>
void CpAsyncWait() {
  emulator::WaitCopies(kPending);
}

inline uint4 LdGlobalNc16(const void* p, const Site& site = Site::current()) {
  emulator::CheckAligned(p, 16, "LdGlobalNc16: not aligned to 16 bytes", site);
  uint4 value;
  std::memcpy(&value, p, 16);
  return value;
}
inline uint4 LdGlobalStream16(const void* p, const Site& site = Site::current()) {
  emulator::CheckAligned(p, 16, "LdGlobalStream16: not aligned to 16 bytes", site);
  uint4 value;
  std::memcpy(&value, p, 16);
  return value;
}
inline uint4 LdGlobalEarly16(const void* p, const Site& site = Site::current()) {
  emulator::CheckAligned(p, 16, "LdGlobalEarly16: not aligned to 16 bytes", site);
  uint4 value;
  std::memcpy(&value, p, 16);
  return value;
}
inline void StGlobalStream16(void* p, uint4 value, const Site& site = Site::current()) {
  emulator::CheckAligned(p, 16, "StGlobalStream16: not aligned to 16 bytes", site);
  std::memcpy(p, &value, 16);
}

// ---- Memory order and atomics

template <Scope kScope = Scope::kGpu, typename T>
T LdAcquire(const T* p) {
  emulator::Yield(true);
  emulator::NoteAcquire();
  return std::atomic_ref<T>(*const_cast<T*>(p)).load(std::memory_order_acquire);
}
template <Scope kScope = Scope::kGpu, typename T>
void StRelease(T* p, std::type_identity_t<T> value) {
  std::atomic_ref<T>(*p).store(value, std::memory_order_release);
  emulator::NoteProgress();
}

namespace emulator {

template <typename T, typename Fn>
T AtomicUpdate(T* p, const Fn& fn) {
  Yield(false);
  std::atomic_ref<T> cell(*p);
  T old = cell.load(std::memory_order_relaxed);
  while (!cell.compare_exchange_weak(old, fn(old), std::memory_order_acq_rel)) {
  }
  NoteProgress();
  return old;
}

}  // namespace emulator

template <typename T>
T AtomicAdd(T* p, std::type_identity_t<T> value) {
  return emulator::AtomicUpdate(p, [&](T old) { return old + value; });
}
template <typename T>
T AtomicMax(T* p, std::type_identity_t<T> value) {
  return emulator::AtomicUpdate(p, [&](T old) { return std::max(old, value); });
}
template <typename T>
T AtomicMin(T* p, std::type_identity_t<T> value) {
  return emulator::AtomicUpdate(p, [&](T old) { return std::min(old, value); });
}
template <typename T>
T AtomicOr(T* p, std::type_identity_t<T> value) {
  return emulator::AtomicUpdate(p, [&](T old) { return old | value; });
}
template <typename T>
T AtomicExch(T* p, std::type_identity_t<T> value) {
  return emulator::AtomicUpdate(p, [&](T) { return value; });
}
template <typename T>
T AtomicCas(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> desired) {
  emulator::Yield(true);
  T old = expected;
  if (std::atomic_ref<T>(*p).compare_exchange_strong(old, desired, std::memory_order_acq_rel)) {
    emulator::NoteProgress();
  }
  return old;
}
// AtomicAdd with release, acquire or both in `kScope`, as a counter of arrived blocks needs.
template <Scope kScope = Scope::kGpu, typename T>
T AtomicAddAcqRel(T* p, std::type_identity_t<T> value) {
  emulator::NoteAcquire();
  return AtomicAdd(p, value);
}

// ---- Arithmetic

inline float Exp2Approx(float x) { return std::exp2(x); }
inline float RcpApprox(float x) { return 1.0f / x; }
inline void NanoSleep(unsigned) { emulator::Yield(true); }
inline uint64_t GlobalTimer() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                               std::chrono::nanoseconds(1));
}

inline void GridDependencyWait(const Site& site = Site::current()) { emulator::AwaitPrevious(site); }
inline void GridDependencyLaunch() { emulator::LetNextStart(); }

inline int PopCount(uint32_t x) { return __builtin_popcount(x); }
inline int CountLeadingZeros(uint32_t x) { return x == 0 ? 32 : __builtin_clz(x); }
// Lowest set bit + 1; 0 when none is set.
inline int FindFirstSet(uint32_t x) { return __builtin_ffs(static_cast<int>(x)); }
inline uint32_t MulHi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32);
}
inline float MulRn(float a, float b) { return a * b; }

}  // namespace somnus::cuda_emulated
