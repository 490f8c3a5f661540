// comm_bench: how long an all-reduce among ranks on CPUs takes, through shared memory and over TCP.
//
//   comm_bench [--ranks=N] [--host=ADDR] [--rounds=N]
//
// The ranks are processes of this machine, which sum f32 from 1 KiB to 4 MiB. With --host=127.0.0.1 the TCP
// part measures the loopback: system calls and copies without a network's latency. Shared memory and TCP take
// turns; a line has the median and the 90th percentile over all rounds, as seen by rank 0.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/flags.h"
#include "base/monotonic.h"
#include "base/random_hex.h"
#include "base/status_macros.h"
#include "tools/probe/machine_probe.h"
#include "worker/comm/tcp_communicator.h"

namespace somnus {
namespace {

struct BenchFlags {
  int32_t ranks = 2;
  int32_t rounds = 5;
  std::string host = "127.0.0.1";
};

constexpr int64_t kSizes[] = {1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20};

int CallsOf(int64_t bytes) { return static_cast<int>(std::clamp<int64_t>((64 << 20) / bytes, 20, 2000)); }

// Microseconds of each call.
absl::StatusOr<std::vector<double>> TimeCalls(Communicator& comm, int64_t bytes) {
  std::vector<float> data(bytes / sizeof(float));
  std::vector<double> times;
  const int calls = CallsOf(bytes), warm_up = calls / 10 + 1;
  for (int i = 0; i < calls + warm_up; ++i) {
    std::fill(data.begin(), data.end(), 1.0f);
    RETURN_IF_ERROR(comm.Barrier());
    const MonotonicTime start = MonotonicNow();
    RETURN_IF_ERROR(comm.AllReduceSum(data.data(), static_cast<int64_t>(data.size()), DataType::kF32));
    if (i >= warm_up) times.push_back(absl::ToDoubleMicroseconds(MonotonicNow() - start));
  }
  return times;
}

using Join = std::function<absl::StatusOr<std::unique_ptr<Communicator>>(int rank)>;

// Runs every rank in a process of its own; the process of rank 0 adds its times to `results`, through a pipe.
absl::Status RunRanks(int num_ranks, int64_t bytes, const Join& join, std::vector<double>* results) {
  int ends[2];
  if (pipe(ends) != 0) return absl::InternalError("pipe");
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const pid_t pid = fork();
    if (pid != 0) {
      ranks.push_back(pid);
      continue;
    }
    auto comm = join(rank);
    const auto times = comm.ok() ? TimeCalls(**comm, bytes) : comm.status();
    if (!times.ok()) {
      std::fprintf(stderr, "rank %d: %s\n", rank, times.status().ToString().c_str());
      _exit(1);
    }
    const size_t size = times->size() * sizeof(double);  // below a pipe's capacity
    _exit(rank == 0 && write(ends[1], times->data(), size) != static_cast<ssize_t>(size) ? 1 : 0);
  }
  close(ends[1]);
  double time = 0;
  while (read(ends[0], &time, sizeof(time)) == sizeof(time)) results->push_back(time);
  close(ends[0]);
  bool good = true;
  for (const pid_t pid : ranks) {
    int status = 0;
    good = waitpid(pid, &status, 0) == pid && status == 0 && good;
  }
  return good ? absl::OkStatus() : absl::InternalError("a rank has failed");
}

std::string UniqueName() { return absl::StrCat("comm-bench-", RandomHex(8)); }

absl::Status RunShm(const BenchFlags& flags, int64_t bytes, std::vector<double>* results) {
  GroupOptions options;
  options.group_name = UniqueName();
  options.world_size = flags.ranks;
  return RunRanks(
      flags.ranks, bytes,
      [&](int rank) {
        options.rank = rank;
        return MakeShmCommunicator(options);
      },
      results);
}

absl::Status RunTcp(const BenchFlags& flags, int64_t bytes, std::vector<double>* results) {
  GroupOptions options;
  options.group_name = UniqueName();
  options.world_size = flags.ranks;
  options.secret = "not a secret in a benchmark";
  std::vector<TcpListener> listeners;
  for (int rank = 0; rank < flags.ranks; ++rank) {
    ASSIGN_OR_RETURN(TcpListener listener, ListenOnTcp(flags.host));
    options.rank_addresses.push_back(absl::StrCat(flags.host, ":", listener.port));
    listeners.push_back(std::move(listener));
  }
  return RunRanks(
      flags.ranks, bytes,
      [&](int rank) {
        options.rank = rank;
        return MakeTcpCommunicator(options, std::move(listeners[rank]));
      },
      results);
}

void PrintLine(int64_t bytes, std::vector<double> shm, std::vector<double> tcp) {
  const auto at = [](std::vector<double>& times, double share) {
    std::sort(times.begin(), times.end());
    return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))];
  };
  std::printf("%8lld B %10.1f %10.1f %10.1f %10.1f\n", static_cast<long long>(bytes), at(shm, 0.5),
              at(shm, 0.9), at(tcp, 0.5), at(tcp, 0.9));
}

absl::Status Run(const BenchFlags& flags) {
  std::printf("%s\n%d ranks; microseconds\n%10s %10s %10s %10s %10s\n", ToString(ProbeMachine()).c_str(),
              flags.ranks, "", "shm p50", "shm p90", "tcp p50", "tcp p90");
  for (const int64_t bytes : kSizes) {
    std::vector<double> shm, tcp;
    for (int round = 0; round < flags.rounds; ++round) {
      RETURN_IF_ERROR(RunShm(flags, bytes, &shm));
      RETURN_IF_ERROR(RunTcp(flags, bytes, &tcp));
    }
    PrintLine(bytes, std::move(shm), std::move(tcp));
    std::fflush(stdout);
  }
  std::printf("%s\n", ToString(ProbeMachine()).c_str());
  return absl::OkStatus();
}

FlagTable Flags(BenchFlags* f) {
  return {.program = "comm_bench",
          .usage = "comm_bench [flags]",
          .about = "Times all-reduces among ranks on CPUs, through shared memory and over TCP.",
          .groups = {{"Flags",
                      {Flag::Int("ranks", &f->ranks, 2, 64, "processes that sum"),
                       Flag::Int("rounds", &f->rounds, 1, 1000, "turns of shared memory and TCP"),
                       Flag::Text("host", &f->host, "address of this machine for TCP").Shows("ADDR")}}}};
}

}  // namespace
}  // namespace somnus

int main(int argc, char** argv) {
  somnus::BenchFlags flags;
  const somnus::FlagTable table = somnus::Flags(&flags);
  if (const auto code = somnus::ParseCommandLine(table, argc, argv); code.has_value()) return *code;
  const absl::Status status = somnus::Run(flags);
  if (!status.ok()) std::fprintf(stderr, "comm_bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
