#include "checkpoint/tensor_part.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace somnus {
namespace {

// A transposed part is read a few rows at a time, so that a tile of the whole stays in a cache.
constexpr int64_t kTransposedRows = 64;

}  // namespace

TensorInfo MakePartTensor(std::string name, std::vector<int64_t> shape, TensorPart part) {
  const TensorInfo& whole = part.whole;
  const bool blocks = BlockSizeOf(whole.type).elements > 1;
  TensorInfo tensor{std::move(name), whole.type, std::move(shape), whole.data, whole.bytes, whole.file};
  if (blocks && (part.transposed || whole.scaled_by_blocks)) tensor.type = StorageType::kF32;
  tensor.source = whole.source;
  tensor.part = std::make_shared<const TensorPart>(std::move(part));
  return tensor;
}

absl::Status ReadPart(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                      int64_t col_end, BlockSize unit,
                      absl::FunctionRef<absl::Status(int64_t, int64_t, int64_t, int64_t, void*)> read,
                      void* out) {
  const TensorPart& part = *tensor.part;
  const int64_t width = col_end - col_begin, row_bytes = width / unit.elements * unit.bytes;
  auto* to = static_cast<uint8_t*>(out);
  std::vector<uint8_t> tile;
  for (int64_t row = row_begin; row < row_end && width > 0;) {
    const int64_t group = row / part.group_rows, in_group = row % part.group_rows;
    const int64_t first = part.first_row + group * part.group_step;
    int64_t run = std::min(row_end - row, part.group_rows - in_group);
    if (!part.transposed) {
      if (part.row_step != 1) run = 1;
      const int64_t from = first + in_group * part.row_step;
      RETURN_IF_ERROR(read(from, from + run, part.first_col + col_begin, part.first_col + col_end, to));
    } else {
      run = std::min(run, kTransposedRows);
      const int64_t from = part.first_col + in_group * part.row_step, span = (run - 1) * part.row_step + 1;
      tile.resize(static_cast<size_t>(width * span * unit.bytes));
      RETURN_IF_ERROR(read(first + col_begin, first + col_end, from, from + span, tile.data()));
      for (int64_t r = 0; r < run; ++r) {
        const uint8_t* element = tile.data() + r * part.row_step * unit.bytes;
        for (int64_t c = 0; c < width; ++c, element += span * unit.bytes)
          std::memcpy(to + r * row_bytes + c * unit.bytes, element, static_cast<size_t>(unit.bytes));
      }
    }
    to += run * row_bytes;
    row += run;
  }
  return absl::OkStatus();
}

}  // namespace somnus
