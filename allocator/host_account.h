#pragma once
// One account of a host's free memory for all processes of a user: two ranks that both find enough of it free
// must not both take it, and be killed together.
//
// A process reserves bytes before it makes them resident and lets the reservation go once they are; meanwhile
// others count them as taken. Reservations are in a file in memory that all processes open, each held by a
// lock of the kernel on its byte, so that those of a process that ended count no longer. Nobody keeps a
// reservation while waiting for another one. Where the file cannot be had, the account is the process's own.
//
// Thread safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace somnus {

struct HostMemoryAccountOptions {
  std::string path;                    // of the file; empty: /dev/shm/somnus-memory-<user id>
  std::function<int64_t()> available;  // free bytes of the host; empty: AvailableHostMemory
  // How long Reserve waits for bytes that others have reserved to become resident. A process that is stopped
  // in between holds up others for that long.
  absl::Duration patience = absl::Minutes(2);
};

// Some reserved bytes; they go back when it is destroyed. Movable.
class HostReservation {
 public:
  HostReservation() = default;
  HostReservation(HostReservation&& other) noexcept { *this = std::move(other); }
  HostReservation& operator=(HostReservation&& other) noexcept;
  ~HostReservation();

 private:
  friend class HostMemoryAccountImpl;
  std::function<void()> release_;
};

class HostMemoryAccount {
 public:
  static std::shared_ptr<HostMemoryAccount> Open(const HostMemoryAccountOptions& options = {});
  virtual ~HostMemoryAccount() = default;

  // ResourceExhausted says how much is missing. Decided while nobody else's reservation stands in the way: a
  // process that is making memory resident is waited for, because its bytes may be counted twice.
  virtual absl::StatusOr<HostReservation> Reserve(int64_t bytes) = 0;
  // Free bytes that nobody has reserved, now. At least 0.
  virtual int64_t Available() = 0;
};

}  // namespace somnus
