#include "worker/model/weight_upload.h"

#include <algorithm>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/float_convert.h"

namespace somnus {
namespace {

// That many stay in a core's caches between reading and rounding.
constexpr int64_t kScratchFloats = 16 * 1024;

bool IsStoredAs(StorageType stored, DataType dtype) {
  switch (dtype) {
    case DataType::kF32:
      return stored == StorageType::kF32;
    case DataType::kBF16:
      return stored == StorageType::kBF16;
    case DataType::kF16:
      return stored == StorageType::kF16;
    default:
      return false;
  }
}

// Converts a few rows, or a part of a row, at a time.
absl::Status ReadConverted(const Checkpoint& checkpoint, const UploadPiece& piece,
                           std::vector<float>* scratch, char* out) {
  const int64_t cols_at_once = std::min(piece.cols.size(), kScratchFloats);
  const int64_t rows_at_once = kScratchFloats / cols_at_once;  // 1 where a row is cut
  scratch->resize(kScratchFloats);
  for (int64_t row = piece.rows.begin; row < piece.rows.end; row += rows_at_once) {
    const int64_t row_end = std::min(piece.rows.end, row + rows_at_once);
    for (int64_t col = piece.cols.begin; col < piece.cols.end; col += cols_at_once) {
      const int64_t col_end = std::min(piece.cols.end, col + cols_at_once);
      RETURN_IF_ERROR(checkpoint.ReadRows(*piece.tensor, row, row_end, col, col_end, scratch->data()));
      const int64_t count = (row_end - row) * (col_end - col);
      ConvertFromFloat(scratch->data(), count, piece.dtype, out);
      out += count * SizeOf(piece.dtype);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadPiece(const Checkpoint& checkpoint, const UploadPiece& piece, std::vector<float>* scratch,
                       char* out) {
  const TensorInfo& tensor = *piece.tensor;
  const bool as_stored = IsStoredAs(tensor.type, piece.dtype) && tensor.offset == 0;
  const absl::Status status = !checkpoint.is_dummy() && as_stored
                                  ? checkpoint.ReadStoredRows(tensor, piece.rows.begin, piece.rows.end,
                                                              piece.cols.begin, piece.cols.end, out)
                                  : ReadConverted(checkpoint, piece, scratch, out);
  if (status.ok() || absl::StrContains(status.message(), tensor.name)) return status;
  return absl::Status(status.code(), absl::StrCat("reading tensor ", tensor.name, ": ", status.message()));
}

}  // namespace

void CutIntoPieces(const UploadPiece& whole, int64_t max_bytes, std::vector<UploadPiece>* pieces) {
  if (whole.bytes() == 0) return;
  const int64_t size = SizeOf(whole.dtype), width = whole.cols.size();
  const int64_t cols_at_once = std::min(width, max_bytes / size);
  const int64_t rows_at_once = cols_at_once < width ? 1 : max_bytes / (width * size);
  UploadPiece piece = whole;
  for (int64_t row = whole.rows.begin; row < whole.rows.end; row += rows_at_once) {
    piece.rows = {row, std::min(whole.rows.end, row + rows_at_once)};
    for (int64_t col = whole.cols.begin; col < whole.cols.end; col += cols_at_once) {
      piece.cols = {col, std::min(whole.cols.end, col + cols_at_once)};
      pieces->push_back(piece);
      piece.to += piece.bytes();
    }
  }
}

absl::Status UploadPieces(const Checkpoint& checkpoint, std::vector<UploadPiece> pieces,
                          DeviceUploader& uploader, int num_threads, const LoadProgress& progress) {
  // In the order of the files, because disks read fastest in sequence. The maps of different files may be at
  // any addresses.
  std::stable_sort(pieces.begin(), pieces.end(), [](const UploadPiece& a, const UploadPiece& b) {
    return std::less<>()(a.tensor->data, b.tensor->data);
  });
  int64_t total = 0;
  for (const UploadPiece& piece : pieces) total += piece.bytes();
  ProgressMeter meter(progress, total);
  const absl::Status read =
      RunLoadJobs(pieces.size(), num_threads, [&](size_t i, std::vector<float>* scratch) -> absl::Status {
        const UploadPiece& piece = pieces[i];
        ASSIGN_OR_RETURN(DeviceUploader::Buffer* const buffer, uploader.Acquire());
        const absl::Status status = ReadPiece(checkpoint, piece, scratch, buffer->data);
        uploader.Send(buffer, piece.to, status.ok() ? piece.bytes() : 0,
                      absl::StrCat("tensor ", piece.tensor->name));
        if (status.ok()) meter.Add(piece.bytes());
        return status;
      });
  const absl::Status sent = uploader.Wait();
  RETURN_IF_ERROR(read);
  RETURN_IF_ERROR(sent);
  meter.Finish();
  return absl::OkStatus();
}

}  // namespace somnus
