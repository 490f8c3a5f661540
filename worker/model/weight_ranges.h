#pragma once
// Which bytes of a checkpoint's files a rank reads.

#include <vector>

#include "checkpoint/mapped_file.h"
#include "worker/model/weight_plan.h"

namespace somnus {

// Those of the plan's tensors, in the order of the files, without overlaps. Of a tensor that is cut by
// columns whole rows, since the pages between are those of other ranks, mostly of the same host. Ranges that
// are close to each other are one.
std::vector<FileRange> WeightRanges(const WeightPlan& plan);

}  // namespace somnus
