#include "tools/probe/machine_probe.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "base/cpus.h"
#include "base/numa.h"

namespace somnus {
namespace {

using Clock = std::chrono::steady_clock;
using Vec = uint64_t __attribute__((vector_size(16)));

constexpr size_t kBufferBytes = size_t{160} << 20;
constexpr size_t kSmallPage = 4 << 10;
constexpr size_t kLargestPage = 64 << 10;  // of any kernel, except huge pages
constexpr int kReadRounds = 3;
constexpr int kPingPongRounds = 5;
constexpr int kPingPongTrips = 5000;

double Seconds(Clock::time_point from) { return std::chrono::duration<double>(Clock::now() - from).count(); }

uint64_t ReadAll(const char* data, size_t bytes) {
  const Vec* v = reinterpret_cast<const Vec*>(data);
  Vec a{}, b{}, c{}, d{};
  for (size_t i = 0; i + 4 <= bytes / sizeof(Vec); i += 4) {
    a ^= v[i];
    b ^= v[i + 1];
    c ^= v[i + 2];
    d ^= v[i + 3];
  }
  const Vec x = a ^ b ^ c ^ d;
  return x[0] ^ x[1];
}

// A private anonymous mapping with huge pages where the kernel grants huge pages, untouched so far; empty
// when out of memory.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return;
    data_ = static_cast<char*>(p);
    madvise(data_, bytes, MADV_HUGEPAGE);
  }
  ~Buffer() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  char* data() const { return data_; }

 private:
  char* data_ = nullptr;
  size_t bytes_;
};

// The bytes that one thread reads.
struct Part {
  char* data = nullptr;
  size_t bytes = 0;
  double seconds[kReadRounds] = {};
};

// In proportion to the threads' speeds, cut between pages.
std::vector<Part> Divide(const Buffer& buffer, const std::vector<ProbeThread>& probe) {
  double sum = 0, before = 0;
  for (const ProbeThread& thread : probe) sum += thread.speed;
  std::vector<Part> parts;
  size_t begin = 0;
  for (const ProbeThread& thread : probe) {
    before += thread.speed;
    const auto end = static_cast<size_t>(kBufferBytes * (before / sum)) / kLargestPage * kLargestPage;
    parts.push_back({.data = buffer.data() + begin, .bytes = end - begin});
    begin = end;
  }
  return parts;
}

// The best of a few rounds: other users of the machine can only make a round slower. Where no page was
// touched before, each thread's pages come from the nodes that the thread names, or else from the node of its
// CPU.
double ReadBandwidth(const Buffer& buffer, const std::vector<ProbeThread>& probe) {
  std::vector<Part> parts = Divide(buffer, probe);
  std::atomic<uint64_t> sink{0};
  std::barrier sync(static_cast<ptrdiff_t>(probe.size()));
  const auto work = [&](size_t t) {
    Part& part = parts[t];
    PinThisThread({probe[t].cpu});
    for (size_t i = 0; i < part.bytes; i += kSmallPage) part.data[i] = 1;
    for (double& seconds : part.seconds) {
      sync.arrive_and_wait();
      const auto start = Clock::now();
      sink += ReadAll(part.data, part.bytes);
      seconds = Seconds(start);
    }
  };
  // Before any page is touched: a huge page may reach from one part into the next.
  for (size_t t = 0; t < probe.size(); ++t)
    PlacePages(parts[t].data, static_cast<int64_t>(parts[t].bytes), probe[t].memory_nodes).IgnoreError();
  std::vector<std::thread> threads;
  for (size_t t = 0; t < probe.size(); ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  double best = 0;
  for (int round = 0; round < kReadRounds; ++round) {
    double bytes = 0, slowest = 0;
    for (const Part& part : parts) {
      bytes += static_cast<double>(part.bytes);
      slowest = std::max(slowest, part.seconds[round]);
    }
    best = std::max(best, bytes / slowest / 1e9);
  }
  return best;
}

double PingPong(const std::vector<int>& cpus) {
  struct alignas(128) Line {
    std::atomic<int> turn{0};
  };
  Line line;
  double best = 1e9;
  std::thread peer([&] {
    PinThisThread({cpus[1]});
    for (int i = 0; i < kPingPongRounds * kPingPongTrips; ++i) {
      while (line.turn.load(std::memory_order_acquire) != 2 * i + 1) {
      }
      line.turn.store(2 * i + 2, std::memory_order_release);
    }
  });
  std::thread self([&] {
    PinThisThread({cpus[0]});
    for (int round = 0; round < kPingPongRounds; ++round) {
      const auto start = Clock::now();
      for (int i = round * kPingPongTrips; i < (round + 1) * kPingPongTrips; ++i) {
        line.turn.store(2 * i + 1, std::memory_order_release);
        while (line.turn.load(std::memory_order_acquire) != 2 * i + 2) {
        }
      }
      best = std::min(best, Seconds(start) / kPingPongTrips * 1e9);
    }
  });
  self.join();
  peer.join();
  return best;
}

}  // namespace

double ReadGbps(const std::vector<ProbeThread>& threads) {
  const Buffer buffer(kBufferBytes);
  if (buffer.data() == nullptr || threads.empty()) return 0;
  return ReadBandwidth(buffer, threads);
}

MachineState ProbeMachine() {
  MachineState state;
  const std::vector<int>& cpus = AllowedCpus();
  const Buffer buffer(kBufferBytes);
  if (cpus.empty() || buffer.data() == nullptr) return state;
  state.read_gbps_1t = ReadBandwidth(buffer, ThreadsOnFirstCpus(1));
  state.read_gbps_2t = state.read_gbps_1t;
  if (cpus.size() >= 2) {
    state.read_gbps_2t = ReadBandwidth(buffer, ThreadsOnFirstCpus(2));
    state.ping_pong_ns = PingPong(cpus);
  }
  return state;
}

std::string ToString(const MachineState& state) {
  char text[128];
  std::snprintf(text, sizeof(text), "read %.1f GB/s 1T, %.1f GB/s 2T, ping-pong %.0f ns", state.read_gbps_1t,
                state.read_gbps_2t, state.ping_pong_ns);
  return text;
}

}  // namespace somnus
