#pragma once
// How a worker's process has ended, in words for users.

#include <cstdint>
#include <string>

#include "base/last_words.h"

namespace somnus {

struct WorkerEnd {
  // "was killed by signal 9 (Killed)" or "exited with code 3", with what is known of the cause and of the way
  // out.
  std::string words;
  // Another start would end alike: the program does not understand its command line, cannot be run, or has
  // executed an instruction that the CPU lacks.
  bool recurs = false;
  // The program has told that another start would end alike on this host as it is now.
  bool refuses = false;
};

// Of a status of waitpid; `binary` is the path that was started. `killed_for_memory`: the system has killed
// some process for lack of memory while this one ran.
WorkerEnd DescribeEnd(int wait_status, const std::string& binary, const LastWords& last,
                      bool killed_for_memory);

// How many processes the system has killed for lack of memory since it was started; 0 where it does not tell.
int64_t NumKilledForMemory();

}  // namespace somnus
