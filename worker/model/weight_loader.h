#pragma once
// Fills a rank's weights region from a checkpoint. For a synchronous device (a CPU) rows are read as f32, or
// as stored, quantized where the plan says so, and packed, ranges of rows in parallel; for an asynchronous
// device see weight_upload.h.

#include "absl/status/status.h"
#include "checkpoint/checkpoint.h"
#include "kernels/device.h"
#include "worker/model/load_jobs.h"
#include "worker/model/weight_plan.h"

namespace somnus {

// Reads, converts and packs everything, on NumLoadThreads threads. `plan` is bound, and was created from a
// checkpoint of the same model. The device itself makes the matrices of a dummy checkpoint that are not
// quantized. Host memory beside the checkpoint's maps: 512 KiB, or 64 rows if that is more, and a row, for
// each thread; for an asynchronous device as weight_upload.h says, and copies have ended at the return. An
// error names the tensor, and the region's contents are then undefined.
absl::Status LoadWeights(const WeightPlan& plan, const Checkpoint& checkpoint, Device& device,
                         const LoadProgress& progress);

// Reads, converts and packs the rank's part of one tensor, which `plan`'s sources name; the rest of the
// region stays. After all tensors the region has the same bits as after LoadWeights. Memory and errors are as
// there.
absl::Status LoadTensor(const WeightPlan& plan, const Checkpoint& checkpoint, const TensorInfo& tensor,
                        Device& device);

}  // namespace somnus
