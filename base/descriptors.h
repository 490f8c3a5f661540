#pragma once
// Bounds on the file descriptors of this process, with reserves for operators and for workers.
//
// Every connection takes a descriptor, and a process without a free descriptor cannot accept, open or start
// anything. So listeners that strangers reach take no connection whose descriptor is at or beyond the
// listener's bound: the kernel gives the lowest free number, so a number at or beyond a bound says that so
// many are taken. Descriptors beyond the clients' bound are for operators, descriptors beyond the operators'
// bound are for workers, and descriptors beyond the workers' bound are for files and pipes.

#include <cstdint>

namespace somnus {

enum class DescriptorUse { kClients, kOperators, kWorkers };

struct DescriptorBounds {
  int64_t clients = 0;
  int64_t operators = 0;
  int64_t workers = 0;
  int64_t all = 0;  // that the process may have

  int64_t Of(DescriptorUse use) const;
};

// The bounds of a process that may have `limit` descriptors.
DescriptorBounds DivideDescriptors(int64_t limit);
// The least limit with a bound for clients of `clients` or more.
int64_t LeastDescriptors(int64_t clients);
// Raises the soft limit to a higher hard limit, and returns the bounds that follow. Idempotent.
DescriptorBounds RaiseDescriptorLimit();

}  // namespace somnus
