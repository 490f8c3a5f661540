#pragma once
// Faults of a worker at named moments of a transition, so that a test with real processes strikes exactly at
// the wanted moment, without waiting and hoping.
//
// SOMNUS_FAULTS names a file that is read at each moment. A line
//
//   at MOMENT[#N] ACTION@RANK [TIMES]
//
// strikes the worker of that rank (--rank of the worker's command line) when the worker comes to the moment
// for the Nth time (1) since the line was there, in at most TIMES (1) processes or times. The actions:
//
//   kill     the process is gone at once, as by kill -9
//   wait     the worker goes on once the file has no such line any longer
//   fail     the call of the memory's driver ends with ResourceExhausted (moments of memory and files alone)
//   damage   the restored bytes of a copy differ from the saved bytes (moment "restored" alone; host memory)
//
// Each strike is first written to the file SOMNUS_FAULTS.struck, which also counts TIMES; a test deletes that
// file. The moments:
//
//   Plan, Prepare, Commit, Abort   the call has arrived, and nothing is done
//   Commit:done and so on          all is done, and the reply is not sent
//   create, map, access, unmap, release, save, restore
//                                  a call of the memory's driver (allocator/vmm_driver.h)
//   available                      the question how much memory there is; "fail" makes the answer 3 MiB
//   write                          a write of the spill file; "fail" is a full disk
//   restored                       the copy of a restore has ended
//   read, reset                    weights are about to be read, the runner's tables are about to be made

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
