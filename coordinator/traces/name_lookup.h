#pragma once
// Looks up the addresses of a host, for no longer than the caller wants to wait: a resolver that does not
// answer cannot be ended. Not thread safe.

#include <netdb.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/monotonic.h"

namespace somnus {

// The time between two looks whether the caller has given up.
inline constexpr absl::Duration kCancelLook = absl::Milliseconds(100);

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// `is_cancelled` is asked several times a second. Unavailable: the name has no address, or the answer has not
// come by `deadline`, or the call was cancelled.
absl::StatusOr<Addresses> LookUp(const std::string& host, int port, MonotonicTime deadline,
                                 const std::function<bool()>& is_cancelled);

}  // namespace somnus
