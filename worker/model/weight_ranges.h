#pragma once
// Which bytes of a checkpoint's files a rank reads.

#include <vector>

#include "checkpoint/mapped_file.h"
#include "worker/model/weight_plan.h"

namespace somnus {

// The file ranges of the plan's tensors, in the order of the files, without overlaps. For a tensor that is
// cut by columns whole rows, since the pages in between belong to other ranks, mostly of the same host.
// Ranges that are close to each other are joined.
std::vector<FileRange> WeightRanges(const WeightPlan& plan);

}  // namespace somnus
