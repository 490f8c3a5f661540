#pragma once
// How a worker's process has ended, in words for users.

#include <cstdint>
#include <string>

#include "base/last_words.h"

namespace somnus {

struct WorkerEnd {
  // "was killed by signal 9 (Killed)" or "exited with code 3", with the cause and the remedy where known.
  std::string words;
  // The next start would end alike: the program does not understand its command line, cannot be run, or has
  // executed an instruction that the CPU lacks.
  bool recurs = false;
  // The program has told that the next start would end alike on this host in its present state.
  bool refuses = false;
};

// Describes a status of waitpid; `binary` is the path that was started. `killed_for_memory`: the system has
// killed a process for lack of memory while the worker ran.
WorkerEnd DescribeEnd(int wait_status, const std::string& binary, const LastWords& last,
                      bool killed_for_memory);

// The number of processes that the system has killed for lack of memory since boot; 0 where unknown.
int64_t NumKilledForMemory();

}  // namespace somnus
