#include "allocator/piece_codec.h"

#include <xxhash.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "base/check.h"

namespace somnus {
namespace {

// A frame: the head, then each plane with its size of the head, then the bytes that fill no whole number.
constexpr int kMaxPlanes = 4;
struct Head {
  uint64_t checksum;                        // of the piece
  uint32_t num_planes;                      // bytes of a number: 1, 2 or 4
  uint32_t plane_bytes;                     // of each, uncompressed
  std::array<uint32_t, kMaxPlanes> stored;  // bytes in the frame; plane_bytes: not compressed
};
static_assert(sizeof(Head) <= kMaxFrameOverhead);

// Numbers are rotated by a bit, so that the sign, which is noise, leaves the exponent's byte.
template <typename Number>
void Split(const char* data, int64_t count, char* planes) {
  for (int64_t i = 0; i < count; ++i) {
    Number number;
    std::memcpy(&number, data + i * sizeof(Number), sizeof(Number));
    number = std::rotl(number, 1);
    for (size_t plane = 0; plane < sizeof(Number); ++plane)
      planes[plane * count + i] = static_cast<char>(number >> (8 * plane));
  }
}

template <typename Number>
void Merge(const char* const* planes, int64_t count, char* data) {
  for (int64_t i = 0; i < count; ++i) {
    Number number = 0;
    for (size_t plane = 0; plane < sizeof(Number); ++plane)
      number |=
          static_cast<Number>(static_cast<Number>(static_cast<uint8_t>(planes[plane][i])) << (8 * plane));
    number = std::rotr(number, 1);
    std::memcpy(data + i * sizeof(Number), &number, sizeof(Number));
  }
}

void SplitInto(uint32_t num_planes, const char* data, int64_t count, char* planes) {
  if (num_planes == 4) return Split<uint32_t>(data, count, planes);
  if (num_planes == 2) return Split<uint16_t>(data, count, planes);
  std::memcpy(planes, data, count);
}

// Bits that a byte of the plane carries.
double Entropy(const char* plane, int64_t count) {
  std::array<int64_t, 256> histogram{};
  for (int64_t i = 0; i < count; ++i) ++histogram[static_cast<uint8_t>(plane[i])];
  double bits = 0;
  for (const int64_t times : histogram) {
    if (times == 0) continue;
    const double share = static_cast<double>(times) / static_cast<double>(count);
    bits -= share * std::log2(share);
  }
  return bits;
}

// Buffers are kept by the thread: fresh memory for every piece would cost as much as the work.
char* Scratch(size_t bytes) {
  thread_local std::string scratch;
  if (scratch.size() < bytes) scratch.resize(bytes);
  return scratch.data();
}

struct Layout {
  uint32_t num_planes = 1;
  std::array<bool, kMaxPlanes> noise{};  // the plane is not worth compressing
};

// A plane of which a byte carries more than this would shrink by less than its compression costs.
constexpr double kNoiseBits = 7.5;

// Looks at a sample from the middle.
Layout ChooseLayout(const char* data, int64_t bytes) {
  constexpr int64_t kSample = 32 << 10;
  const int64_t sample = std::min(bytes, kSample) / kMaxPlanes * kMaxPlanes;
  const char* const from = data + (bytes - sample) / 2 / kMaxPlanes * kMaxPlanes;
  char* const planes = Scratch(sample);
  Layout best;
  double least = std::numeric_limits<double>::infinity();
  for (const uint32_t num_planes : {1u, 2u, 4u}) {
    const int64_t count = sample / num_planes;
    SplitInto(num_planes, from, count, planes);
    Layout layout = {.num_planes = num_planes};
    double bits = 0;
    for (uint32_t plane = 0; plane < num_planes; ++plane) {
      const double entropy = Entropy(planes + plane * count, count);
      layout.noise[plane] = entropy > kNoiseBits;
      bits += (layout.noise[plane] ? 8 : entropy) / num_planes;
    }
    if (bits < least) {
      best = layout;
      least = bits;
    }
  }
  return best;
}

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

// The redundancy of a plane is in the frequency of each byte, not in repeated sequences: the search for
// matches is made short, because the search takes time, and because the few chance matches slow decompression
// down.
ZSTD_CCtx* MakeCompressor() {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  SOMNUS_CHECK(context != nullptr);
  for (const auto& [parameter, value] : {std::pair(ZSTD_c_strategy, int{ZSTD_fast}),
                                         std::pair(ZSTD_c_minMatch, 7), std::pair(ZSTD_c_hashLog, 6)}) {
    SOMNUS_CHECK(ZSTD_isError(ZSTD_CCtx_setParameter(context, parameter, value)) == 0);
  }
  return context;
}

ZSTD_CCtx* Compressor() {
  thread_local const std::unique_ptr<ZSTD_CCtx, FreeContext> context(MakeCompressor());
  return context.get();
}

ZSTD_DCtx* Decompressor() {
  thread_local const std::unique_ptr<ZSTD_DCtx, FreeContext> context(ZSTD_createDCtx());
  SOMNUS_CHECK(context != nullptr);
  return context.get();
}

// Appends the plane, and returns the bytes that the plane takes.
uint32_t StorePlane(const char* plane, uint32_t bytes, bool noise, std::string* frame) {
  const size_t begin = frame->size();
  if (!noise) {
    frame->resize(begin + bytes);
    const size_t stored = ZSTD_compress2(Compressor(), frame->data() + begin, bytes, plane, bytes);
    if (ZSTD_isError(stored) == 0 && stored < bytes) {
      frame->resize(begin + stored);
      return static_cast<uint32_t>(stored);
    }
  }
  frame->resize(begin);
  frame->append(plane, bytes);
  return bytes;
}

absl::Status Damaged() { return absl::DataLossError("a compressed backup is damaged"); }

}  // namespace

absl::Status CheckCompression() { return absl::OkStatus(); }

void CompressPiece(const char* data, int64_t bytes, std::string* frame) {
  SOMNUS_CHECK(bytes <= kMaxPieceBytes);
  Head head{};
  head.checksum = XXH3_64bits(data, bytes);
  const Layout layout = ChooseLayout(data, bytes);
  head.num_planes = layout.num_planes;
  const int64_t count = bytes / head.num_planes, whole = head.num_planes * count;
  head.plane_bytes = static_cast<uint32_t>(count);
  char* const planes = Scratch(whole);
  SplitInto(head.num_planes, data, count, planes);
  frame->clear();
  frame->reserve(sizeof(Head) + bytes);
  frame->resize(sizeof(Head));
  for (uint32_t plane = 0; plane < head.num_planes; ++plane)
    head.stored[plane] = StorePlane(planes + plane * count, head.plane_bytes, layout.noise[plane], frame);
  frame->append(data + whole, bytes - whole);
  std::memcpy(frame->data(), &head, sizeof(Head));
}

absl::Status DecompressPiece(absl::string_view frame, int64_t bytes, char* data) {
  Head head;
  if (frame.size() < sizeof(Head)) return Damaged();
  std::memcpy(&head, frame.data(), sizeof(Head));
  frame.remove_prefix(sizeof(Head));
  const int64_t count = head.plane_bytes, whole = head.num_planes * count;
  if (head.num_planes < 1 || head.num_planes > kMaxPlanes || whole > bytes) return Damaged();
  char* const unpacked = Scratch(whole);
  std::array<const char*, kMaxPlanes> planes{};
  for (uint32_t plane = 0; plane < head.num_planes; ++plane) {
    const size_t stored = head.stored[plane];
    if (stored > frame.size()) return Damaged();
    planes[plane] = frame.data();
    if (stored != head.plane_bytes) {
      char* const to = unpacked + plane * count;
      if (ZSTD_decompressDCtx(Decompressor(), to, count, frame.data(), stored) != head.plane_bytes)
        return Damaged();
      planes[plane] = to;
    }
    frame.remove_prefix(stored);
  }
  if (static_cast<int64_t>(frame.size()) != bytes - whole) return Damaged();
  if (head.num_planes == 4) {
    Merge<uint32_t>(planes.data(), count, data);
  } else if (head.num_planes == 2) {
    Merge<uint16_t>(planes.data(), count, data);
  } else {
    std::memcpy(data, planes[0], count);
  }
  std::memcpy(data + whole, frame.data(), frame.size());
  return XXH3_64bits(data, bytes) == head.checksum ? absl::OkStatus() : Damaged();
}

}  // namespace somnus
