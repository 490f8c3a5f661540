#pragma once
// The worker process: one rank of one model. Listens, registers with its coordinator, and serves it until
// told to leave.

#include "worker/worker.h"

namespace somnus {

// The whole of main: command line, logging, exit code. `parts` also say whether there is a GPU; tests pass
// their own.
int WorkerMain(int argc, char** argv, const WorkerParts& parts);

}  // namespace somnus
