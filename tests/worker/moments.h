#pragma once
// Faults of a worker at named moments of a transition, so that a test with real processes strikes exactly at
// the wanted moment, without waiting and hoping.
//
// SOMNUS_FAULTS names a file that is read at each moment. A line
//   at MOMENT[#N] ACTION@RANK [TIMES] strikes the worker of that rank (--rank of its command line) when the
//   worker comes to the moment for the Nth time (1) since the line was there, in at most TIMES (1) processes
//   or times:
//   kill   the process is gone at once, as by kill -9
//   wait   the worker goes on once the file does not have the line any longer
//   fail   the call of the memory's driver ends with ResourceExhausted (of memory's and the file's moments
//          alone)
//   damage the restored bytes of a copy differ from the saved bytes (of the moment "restored" alone; host
//   memory) Each strike is first written to the file SOMNUS_FAULTS.struck, which also counts TIMES; a test
//   deletes that file. MOMENT is
//   the name of a call (Plan, Prepare, Commit, Abort): the call has arrived, and nothing is done;
//   the name with ":done" (Commit:done): all is done, and the reply is not sent;
//   create, map, access, unmap, release, save, restore: a call of the memory's driver
//   (allocator/vmm_driver.h); available: the question how much memory there is, where "fail" makes the answer
//   3 MiB; write: a write of the spill file, where "fail" is a full disk; restored: such a copy has ended;
//   read, reset: weights are about to be read, the runner's tables are about to be made.

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace somnus {

// The rank of the worker's command line; -1: no rank. To be called before any other function here.
void SetMomentRank(const std::vector<std::string>& arguments);
// The worker has come to `moment`. Returns ResourceExhausted for a failure, DataLoss for damage. Thread safe.
absl::Status Reach(const std::string& moment);
// Makes every gRPC server that is built from now on reach the moments of the server's calls.
void WatchCalls();

}  // namespace somnus
