#pragma once
// Weights onto an asynchronous device: each reader thread takes a pinned buffer of the device's uploader,
// reads a piece of this rank's slices from the checkpoint into the buffer, in the type that the device is to
// hold, and sends the buffer. So pieces are read, converted and copied at the same time. Rows that are stored
// in the device's type are copied byte for byte; the rest goes through f32, a little at a time, and is
// rounded once.
//
// Memory on the host: the uploader's buffers, and 64 KiB for each reader thread that has to convert.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/checkpoint.h"
#include "kernels/device.h"
#include "kernels/tensor.h"
#include "worker/model/load_jobs.h"
#include "worker/model/shards.h"

namespace somnus {

// A rectangle of a stored tensor, and the rectangle's place on the device: dense, row by row, as `dtype`
// (f32, bf16 or f16).
struct UploadPiece {
  const TensorInfo* tensor = nullptr;
  Range rows;
  Range cols;
  DataType dtype = DataType::kF32;
  uint8_t* to = nullptr;

  int64_t bytes() const { return rows.size() * cols.size() * SizeOf(dtype); }
};

// Appends `whole` to `pieces`, cut into pieces of at most `max_bytes`.
void CutIntoPieces(const UploadPiece& whole, int64_t max_bytes, std::vector<UploadPiece>* pieces);

// Reads and sends all pieces, none larger than a buffer, on `num_threads` threads. Ok: everything has
// arrived. An error names the tensor; then no copy is under way any more, and the destinations' contents are
// undefined.
absl::Status UploadPieces(const Checkpoint& checkpoint, std::vector<UploadPiece> pieces,
                          DeviceUploader& uploader, int num_threads, const LoadProgress& progress);

}  // namespace somnus
