#pragma once
// How a rank joins the group of an epoch. All ways of communicating take the same options: shared memory
// (communicator.h), TCP (tcp_communicator.h), and GPUs (device_group.h), each of which ignores the options of
// the other ways.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace somnus {

struct GroupOptions {
  std::string group_name;  // the same on all ranks, unique per group on the host; [A-Za-z0-9_-]{1,64}
  int rank = 0;
  int world_size = 1;
  std::function<bool()> cancelled;  // asked while the group forms; true ends the forming. Null: never
  // Until all ranks are there. Nullopt: 30 s on hosts; 2 minutes on GPUs, where NCCL starts slowly.
  std::optional<absl::Duration> connect_timeout;
  absl::Duration collective_timeout = absl::Seconds(300);
  // Larger messages go in pieces. Nullopt: 1 MiB per rank and slot of shared memory, 4 MiB for data that
  // arrive by TCP, 2 MiB of peer memory.
  std::optional<int64_t> buffer_bytes;
  // Wait actively for spin_time, about the cost of a futex wake-up, before blocking. Off when ranks outnumber
  // CPUs.
  bool spin = true;
  absl::Duration spin_time = absl::Microseconds(50);

  // Ranks on the CPUs of several hosts: the listener of every rank, in rank order, as "host:port" or
  // "[v6]:port". Empty: all ranks are on this host.
  std::vector<std::string> rank_addresses;
  std::string secret;  // the same on all ranks and random, at least 16 bytes
  // A host that answers no probe for that long is lost. At least 2 s.
  absl::Duration unreachable_timeout = absl::Seconds(4);

  // Ranks on GPUs: the host of every rank. Empty: all ranks are on this host.
  std::vector<std::string> rank_hosts;
  std::string nccl_unique_id;  // empty: there is none
  void* stream = nullptr;      // cudaStream_t that collectives are queued on
  // Sums are taken in rank order, for every size. NCCL, which chooses the order by the size, is then left
  // out, and all ranks must be on the same host.
  bool batch_invariant = false;

  // The ranks' numbers in messages, where the group is a part of the model's ranks. Empty: 0, 1, ...
  std::vector<int> numbers;
};

// `options`, with the given values where connect_timeout and buffer_bytes are nullopt.
GroupOptions WithDefaults(GroupOptions options, absl::Duration connect_timeout, int64_t buffer_bytes);
// How messages number the rank.
inline int NumberOf(const GroupOptions& options, int rank) {
  return options.numbers.empty() ? rank : options.numbers[rank];
}
// InvalidArgument names the option: the group's name, the rank, the number of ranks or the buffer.
absl::Status CheckGroupOptions(const GroupOptions& options, int max_ranks);

}  // namespace somnus
