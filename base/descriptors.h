#pragma once
// How many file descriptors this process may have, and which of them are kept back for whom.
//
// Every connection takes a descriptor, and whoever finds none left cannot accept, open or start anything. So
// listeners that strangers reach take no connection whose descriptor is beyond their bound: the kernel gives
// the lowest free number, so a number at or beyond a bound says that so many are taken. What is beyond
// clients' bound is for operators; what is beyond theirs is for workers and for files.

#include <cstdint>

namespace somnus {

enum class DescriptorUse { kClients, kOperators, kWorkers };

struct DescriptorBounds {
  int64_t clients = 0;
  int64_t operators = 0;
  int64_t workers = 0;  // all that the process may have

  int64_t Of(DescriptorUse use) const;
};

// By the limit of a process.
DescriptorBounds DivideDescriptors(int64_t limit);
// Raises the soft limit to the hard one where it is lower, and returns the bounds that follow. Idempotent.
DescriptorBounds RaiseDescriptorLimit();

}  // namespace somnus
