#include "base/descriptors.h"

#include <sys/resource.h>

#include <algorithm>

namespace somnus {
namespace {

// A group of workers takes a few descriptors each; operators have a connection or two.
constexpr int64_t kForWorkers = 512;
constexpr int64_t kForOperators = 128;
constexpr int64_t kForFiles = 64;
// A process with a small limit reserves at most 1 / kLeastShare of the limit for each use.
constexpr int64_t kLeastShare = 8;
constexpr int64_t kLeastShareOfFiles = 32;
constexpr int64_t kUnlimited = int64_t{1} << 30;

}  // namespace

int64_t DescriptorBounds::Of(DescriptorUse use) const {
  switch (use) {
    case DescriptorUse::kClients:
      return clients;
    case DescriptorUse::kOperators:
      return operators;
    case DescriptorUse::kWorkers:
      return workers;
  }
  return clients;
}

DescriptorBounds DivideDescriptors(int64_t limit) {
  const int64_t operators = limit - std::min(kForWorkers, limit / kLeastShare);
  return {.clients = operators - std::min(kForOperators, limit / kLeastShare),
          .operators = operators,
          .workers = limit - std::min(kForFiles, limit / kLeastShareOfFiles),
          .all = limit};
}

int64_t LeastDescriptors(int64_t clients) {
  int64_t limit = clients;
  while (DivideDescriptors(limit).clients < clients) ++limit;
  return limit;
}

DescriptorBounds RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return DivideDescriptors(kUnlimited);
  if (limit.rlim_cur < limit.rlim_max) {
    const rlimit raised = {.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return DivideDescriptors(static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, kUnlimited)));
}

}  // namespace somnus
