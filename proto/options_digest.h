#pragma once
// Tells whether a worker's model was loaded as a coordinator would load it now.

#include <string>

#include "proto/worker.pb.h"

namespace somnus {

// 16 hexadecimal digits over the options of a load: every field except the ones that differ from call to call
// (group_epoch, operation_id, weights_version, and of `parallel` all but rank, world_size and the stages).
// Equal options give equal digests on every host that runs the same build. Not for security.
std::string OptionsDigest(const v1::LoadModelRequest& request);

}  // namespace somnus
