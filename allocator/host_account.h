#pragma once
// One account of a host's free memory for all processes of a user: two ranks that both find enough memory
// free must not both take the memory, and be killed together.
//
// A process reserves bytes before making the bytes resident, and releases the reservation afterwards;
// meanwhile all other processes count the bytes as taken. Reservations are in a file in memory that all
// processes open. A kernel lock on a byte of its own holds each reservation, so that the reservations of a
// process that ended count no longer. A process that waits for a reservation holds no reservation. Where the
// file cannot be had, or the file system is full, the account is the process's own.
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
  // How long Reserve waits for bytes that other processes have reserved to become resident. A process that is
  // stopped in between holds up all other processes for that long.
  absl::Duration patience = absl::Minutes(2);
};

// Reserved bytes; the destructor releases them. Movable.
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

// The error of a caller that asked for `bytes` while fewer were `left` (less than 0: more is taken than there
// was), with the missing bytes (memory_shortage.h).
absl::Status HostShortage(int64_t bytes, int64_t left);

class HostMemoryAccount {
 public:
  static std::shared_ptr<HostMemoryAccount> Open(const HostMemoryAccountOptions& options = {});
  virtual ~HostMemoryAccount() = default;

  // ResourceExhausted says how much is missing. Refuses only while no other process holds a reservation, or
  // after `patience`: bytes that another process is making resident may be counted twice, so Reserve waits
  // for that process.
  virtual absl::StatusOr<HostReservation> Reserve(int64_t bytes) = 0;
  // Free bytes that nobody has reserved, now. At least 0.
  virtual int64_t Available() = 0;
};

}  // namespace somnus
