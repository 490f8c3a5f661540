#pragma once
// A rank's communicator in a pipeline: the group of the rank's stage, and the links to the stages before and
// behind. Collectives are the stage's. An error of a part ends all parts, so that a loss in any stage ends
// the waits of the other stages one after the other.

#include <memory>

#include "worker/comm/communicator.h"
#include "worker/comm/stage_link.h"

namespace somnus {

// `stage`: the communicator of the rank's stage. `previous`: this rank receives, null in the first stage;
// `next`: this rank sends, null in the last stage.
std::unique_ptr<Communicator> MakePipelineCommunicator(std::unique_ptr<Communicator> stage,
                                                       std::unique_ptr<StageLink> previous,
                                                       std::unique_ptr<StageLink> next);

}  // namespace somnus
