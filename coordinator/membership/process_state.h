#pragma once
// The system's view of a process that does not respond. Thread safe.

#include <sys/types.h>

#include <string>

namespace somnus {

// Says why a process of this host cannot get on: "it is stopped by a signal", "it is stopped by a debugger",
// "it waits for a disk or a device", "it has ended". Empty where the system does not know the process, or
// knows no such reason.
std::string WhyNotRunning(pid_t pid);

}  // namespace somnus
