#pragma once
// Fills a rank's weights region from a checkpoint. Where ops run at once: reads rows as f32 and packs them,
// panel ranges in parallel; on asynchronous devices by weight_upload.h.

#include "absl/status/status.h"
#include "checkpoint/checkpoint.h"
#include "kernels/device.h"
#include "worker/model/load_jobs.h"
#include "worker/model/weight_plan.h"

namespace somnus {

// Reads, converts and packs everything, a thread on each allowed CPU. `plan` is bound, and was created from a
// checkpoint of the same model. The matrices of a dummy checkpoint are made by the device. Host memory beside
// the checkpoint's maps: on an asynchronous device as weight_upload.h says, whose copies are done, or given
// up, at the return; else 512 KiB, or 64 rows if they are more, for each thread. An error names the tensor,
// and the region is then undefined.
absl::Status LoadWeights(const WeightPlan& plan, const Checkpoint& checkpoint, Device& device,
                         const LoadProgress& progress);

}  // namespace somnus
