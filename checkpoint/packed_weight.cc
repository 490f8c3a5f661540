#include "checkpoint/packed_weight.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/float8.h"
#include "base/half_float.h"
#include "base/status_macros.h"
#include "checkpoint/dequantize.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/storage_type.h"

namespace somnus {
namespace {

using Order = PackedInts::Order;

// Numbers are unpacked a tile at a time, which stays in a core's first cache. Tiles meet at multiples of
// blocks.
constexpr int64_t kTileRows = 64, kTileCols = 512, kBlock = 32;

// AWQ's place of the number of each of eight columns: the inverse of AWQ's order.
constexpr int kAwqPlace[8] = {0, 4, 1, 5, 2, 6, 3, 7};

template <Order kOrder>
uint8_t GetAs(const PackedInts& ints, int64_t row, int64_t col) {
  const int64_t per_word = 32 / ints.bits;
  const uint8_t* word;
  int64_t place;
  if constexpr (kOrder == Order::kAlongColumn) {
    word = ints.data + row / per_word * ints.stride + col * 4;
    place = row % per_word;
  } else {
    // Bytes: rows need not fill words.
    word = ints.data + row * ints.stride;
    place = kOrder == Order::kAwq ? col / 8 * 8 + kAwqPlace[col % 8] : col;
  }
  if (ints.bits == 8) return word[place];
  return static_cast<uint8_t>(word[place / 2] >> (place % 2 * 4) & 0x0F);
}

uint8_t Get(const PackedInts& ints, int64_t row, int64_t col) {
  switch (ints.order) {
    case Order::kAlongRow:
      return GetAs<Order::kAlongRow>(ints, row, col);
    case Order::kAlongColumn:
      return GetAs<Order::kAlongColumn>(ints, row, col);
    case Order::kAwq:
      return GetAs<Order::kAwq>(ints, row, col);
  }
  return 0;
}

struct Tile {
  int64_t row_begin, row_end, col_begin, col_end;
  int64_t width() const { return col_end - col_begin; }
};

// The stored rows outside, so that memory is read in order.
template <Order kOrder>
void UnpackAs(const PackedWeight& w, const Tile& tile, uint8_t* out) {
  if (w.transposed) {
    for (int64_t col = tile.col_begin; col < tile.col_end; ++col) {
      uint8_t* to = out + (col - tile.col_begin);
      for (int64_t row = tile.row_begin; row < tile.row_end; ++row, to += tile.width())
        *to = GetAs<kOrder>(w.numbers, col, row) ^ w.flip;
    }
    return;
  }
  for (int64_t row = tile.row_begin; row < tile.row_end; ++row) {
    for (int64_t col = tile.col_begin; col < tile.col_end; ++col)
      *out++ = GetAs<kOrder>(w.numbers, row, col) ^ w.flip;
  }
}

void Unpack(const PackedWeight& w, const Tile& tile, uint8_t* out) {
  switch (w.numbers.order) {
    case Order::kAlongRow:
      return UnpackAs<Order::kAlongRow>(w, tile, out);
    case Order::kAlongColumn:
      return UnpackAs<Order::kAlongColumn>(w, tile, out);
    case Order::kAwq:
      return UnpackAs<Order::kAwq>(w, tile, out);
  }
}

// Calls run(tile, numbers), where numbers are [rows of the tile, columns of the tile], for all of the
// rectangle; returns its first error.
absl::Status ForEachTile(const PackedWeight& w, const Tile& rectangle,
                         absl::FunctionRef<absl::Status(const Tile&, const uint8_t*)> run) {
  std::array<uint8_t, kTileRows * kTileCols> numbers;
  for (int64_t row = rectangle.row_begin; row < rectangle.row_end; row += kTileRows) {
    for (int64_t col = rectangle.col_begin; col < rectangle.col_end; col += kTileCols) {
      const Tile tile = {row, std::min(row + kTileRows, rectangle.row_end), col,
                         std::min(col + kTileCols, rectangle.col_end)};
      Unpack(w, tile, numbers.data());
      RETURN_IF_ERROR(run(tile, numbers.data()));
    }
  }
  return absl::OkStatus();
}

float ScaleAt(const PackedWeight& w, int64_t row, int64_t group) {
  const int64_t at = row / w.block_rows * w.row_stride + group * w.group_stride;
  float scale;
  DequantizeBlocks(w.scale_type, w.scales + at * BlockSizeOf(w.scale_type).bytes, 1, &scale);
  return scale;
}

uint8_t ExponentAt(const PackedWeight& w, int64_t row, int64_t group) {
  return w.scales[row / w.block_rows * w.row_stride + group * w.group_stride];
}

int32_t ZeroAt(const PackedWeight& w, int64_t row, int64_t group) {
  if (!w.zeros.has_value()) return w.zero;
  const uint8_t stored = w.transposed ? Get(*w.zeros, group, row) : Get(*w.zeros, row, group);
  return (stored ^ w.zero_flip) + w.zero;
}

int64_t GroupOf(const PackedWeight& w, int64_t col) {
  return w.group_of_col.empty() ? col / w.group_size : w.group_of_col[static_cast<size_t>(col)];
}

// The end of the columns from `col` on that share a scale.
int64_t EndOfGroup(const PackedWeight& w, int64_t col) {
  return w.group_of_col.empty() ? (col / w.group_size + 1) * w.group_size : col + 1;
}

// By the number.
constexpr std::array<float, 256> MakeFloat8Values() {
  std::array<float, 256> values{};
  for (size_t bits = 0; bits < values.size(); ++bits)
    values[bits] = Float8ToFloat(static_cast<uint8_t>(bits));
  return values;
}

// Numbers from the first column of a block on, a block at a time through the form that files of blocks have.
void ConvertMxfp4Row(const PackedWeight& w, int64_t row, const Tile& tile, const uint8_t* numbers,
                     float* out) {
  for (int64_t col = tile.col_begin; col < tile.col_end;) {
    const int64_t count = std::min(EndOfGroup(w, col), tile.col_end) - col, offset = col % kBlock;
    uint8_t block[1 + kBlock / 2] = {ExponentAt(w, row, GroupOf(w, col))};
    for (int64_t i = offset; i < offset + count; ++i)
      block[1 + i % 16] |= static_cast<uint8_t>(*numbers++ << (i / 16 * 4));
    DequantizeRange(StorageType::kMXFP4, block, offset, offset + count, out);
    out += count;
    col += count;
  }
}

void ConvertRow(const PackedWeight& w, int64_t row, const Tile& tile, const uint8_t* numbers, float* out) {
  static constexpr std::array<float, 256> kFloat8 = MakeFloat8Values();
  if (w.mxfp4) return ConvertMxfp4Row(w, row, tile, numbers, out);
  for (int64_t col = tile.col_begin; col < tile.col_end;) {
    const int64_t group = GroupOf(w, col), end = std::min(EndOfGroup(w, col), tile.col_end);
    const float scale = ScaleAt(w, row, group);
    if (w.float8) {
      for (; col < end; ++col) *out++ = kFloat8[*numbers++] * scale;
      continue;
    }
    const int32_t zero = ZeroAt(w, row, group);
    for (; col < end; ++col) *out++ = static_cast<float>(*numbers++ - zero) * scale;
  }
}

absl::Status Bad(const TensorInfo& tensor, int64_t row, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat(tensor.file, ": tensor ", tensor.name, ": row ", row, ": ", what));
}

void PutHalf(float value, uint8_t* to) {
  const uint16_t half = RoundToHalf(value);
  std::memcpy(to, &half, sizeof(half));
}

// Low nibbles are elements 0-15, high nibbles 16-31.
void PutNibbles(const uint8_t* numbers, uint8_t* to) {
  for (int i = 0; i < 16; ++i) to[i] = static_cast<uint8_t>(numbers[i] | numbers[i + 16] << 4);
}

absl::Status PutF8Block(const TensorInfo& tensor, int64_t row, float scale, const uint8_t* numbers,
                        uint8_t* to) {
  if (!std::isfinite(scale)) return Bad(tensor, row, absl::StrCat("a scale is ", scale));
  if (std::any_of(numbers, numbers + kBlock, IsFloat8Nan)) return Bad(tensor, row, "a weight is NaN");
  std::memcpy(to, &scale, sizeof(scale));
  std::memcpy(to + sizeof(scale), numbers, kBlock);
  return absl::OkStatus();
}

// 32 elements that share a scale, as a block of the tensor's type (checkpoint/dequantize.cc).
absl::Status PutBlock(const TensorInfo& tensor, int64_t row, int64_t group, const uint8_t* numbers,
                      uint8_t* to) {
  const PackedWeight& w = *tensor.packed;
  if (w.mxfp4) {
    *to = ExponentAt(w, row, group);
    PutNibbles(numbers, to + 1);
    return absl::OkStatus();
  }
  const float scale = ScaleAt(w, row, group);
  if (tensor.type == StorageType::kF8E4M3) return PutF8Block(tensor, row, scale, numbers, to);
  const int32_t zero = ZeroAt(w, row, group);
  const float minimum = -scale * static_cast<float>(zero);
  if (!(std::fabs(scale) < 65520 && std::fabs(minimum) < 65520))
    return Bad(tensor, row, absl::StrCat("a scale of ", scale, " is beyond half precision"));
  PutHalf(scale, to);
  to += 2;
  if (tensor.type == StorageType::kQ4_1) {
    PutHalf(minimum, to);
    PutNibbles(numbers, to + 2);
    return absl::OkStatus();
  }
  const int32_t middle = tensor.type == StorageType::kQ4_0 ? 8 : 128;
  if (zero != middle)
    return Bad(tensor, row, absl::StrCat("a zero point is ", zero, ", and all should be ", middle));
  if (tensor.type == StorageType::kQ4_0) {
    PutNibbles(numbers, to);
  } else {
    for (int64_t i = 0; i < kBlock; ++i) to[i] = numbers[i] ^ 0x80;
  }
  return absl::OkStatus();
}

// After reading: an error when a file no longer had the bytes that were read.
absl::Status CheckWholeBlocks(const TensorInfo& tensor) {
  for (const MappedFile* source : tensor.packed->sources) {
    const absl::Status whole = source->CheckWhole();
    if (!whole.ok())
      return absl::Status(whole.code(),
                          absl::StrCat(whole.message(), ", and tensor ", tensor.name, " with it"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadPackedRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                            int64_t col_end, float* out) {
  const PackedWeight& w = *tensor.packed;
  const int64_t width = col_end - col_begin;
  RETURN_IF_ERROR(
      ForEachTile(w, {row_begin, row_end, col_begin, col_end}, [&](const Tile& tile, const uint8_t* numbers) {
        for (int64_t row = tile.row_begin; row < tile.row_end; ++row, numbers += tile.width()) {
          ConvertRow(w, row, tile, numbers, out + (row - row_begin) * width + tile.col_begin - col_begin);
        }
        return absl::OkStatus();
      }));
  return CheckWholeBlocks(tensor);
}

absl::Status ReadPackedBlocks(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                              int64_t col_end, void* out) {
  if (tensor.type == StorageType::kF32)
    return ReadPackedRows(tensor, row_begin, row_end, col_begin, col_end, static_cast<float*>(out));
  const PackedWeight& w = *tensor.packed;
  const int64_t bytes = BlockSizeOf(tensor.type).bytes, row_bytes = (col_end - col_begin) / kBlock * bytes;
  auto* const to = static_cast<uint8_t*>(out);
  RETURN_IF_ERROR(ForEachTile(
      w, {row_begin, row_end, col_begin, col_end},
      [&](const Tile& tile, const uint8_t* numbers) -> absl::Status {
        for (int64_t row = tile.row_begin; row < tile.row_end; ++row) {
          for (int64_t col = tile.col_begin; col < tile.col_end; col += kBlock, numbers += kBlock) {
            uint8_t* const block = to + (row - row_begin) * row_bytes + (col - col_begin) / kBlock * bytes;
            RETURN_IF_ERROR(PutBlock(tensor, row, GroupOf(w, col), numbers, block));
          }
        }
        return absl::OkStatus();
      }));
  return CheckWholeBlocks(tensor);
}

}  // namespace somnus
