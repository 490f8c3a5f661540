#pragma once
// The state of the machine right now: memory read bandwidth and how far apart two cores are. On a shared host
// both change from minute to minute, so every benchmark prints a probe before and after each sample.

#include <string>
#include <vector>

#include "tools/probe/probe_thread.h"

namespace somnus {

struct MachineState {
  // Sequential reads of one thread over a buffer of huge pages that is larger than most caches.
  double read_gbps_1t = 0;
  double read_gbps_2t = 0;  // two threads on two CPUs; equal to read_gbps_1t on a single CPU
  double ping_pong_ns = 0;  // round trip of one cache line between two cores; 0 on a single CPU
};

// Takes about 80 ms on an idle machine. Starts and joins its own threads; call it while nothing else is
// measured.
MachineState ProbeMachine();

// Sequential reads of `threads` at once, each of a part in proportion to its speed, in 1e9 bytes a second; 0
// without memory for the reads, and without threads.
double ReadGbps(const std::vector<ProbeThread>& threads);

// "read 30.6 GB/s 1T, 33.5 GB/s 2T, ping-pong 61 ns".
std::string ToString(const MachineState& state);

}  // namespace somnus
