#include "tools/bench/machine_probe.h"

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

namespace somnus {
namespace {

using Clock = std::chrono::steady_clock;
using Vec = uint64_t __attribute__((vector_size(16)));

constexpr size_t kBufferBytes = size_t{160} << 20;
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

// A private anonymous mapping with huge pages where the kernel grants them; empty when out of memory.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return;
    data_ = static_cast<char*>(p);
    madvise(data_, bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < bytes; i += 4096) data_[i] = 1;
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

// The best of a few rounds: other users of the machine can only make one slower.
double ReadBandwidth(const Buffer& buffer, const std::vector<int>& cpus, int num_threads) {
  const size_t part = kBufferBytes / num_threads;
  std::vector<double> seconds(static_cast<size_t>(num_threads) * kReadRounds);
  std::atomic<uint64_t> sink{0};
  std::barrier sync(num_threads);
  const auto work = [&](int t) {
    PinThisThread({cpus[t]});
    for (int round = 0; round < kReadRounds; ++round) {
      sync.arrive_and_wait();
      const auto start = Clock::now();
      sink += ReadAll(buffer.data() + part * t, part);
      seconds[round * num_threads + t] = Seconds(start);
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < num_threads; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  double best = 0;
  for (int round = 0; round < kReadRounds; ++round) {
    const auto first = seconds.begin() + round * num_threads;
    const double slowest = *std::max_element(first, first + num_threads);
    best = std::max(best, static_cast<double>(part) * num_threads / slowest / 1e9);
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

double ReadGbps(int num_threads) {
  const std::vector<int>& cpus = AllowedCpus();
  const Buffer buffer(kBufferBytes);
  if (buffer.data() == nullptr) return 0;
  return ReadBandwidth(buffer, cpus, std::clamp<int>(num_threads, 1, cpus.size()));
}

MachineState ProbeMachine() {
  MachineState state;
  const std::vector<int>& cpus = AllowedCpus();
  const Buffer buffer(kBufferBytes);
  if (cpus.empty() || buffer.data() == nullptr) return state;
  state.read_gbps_1t = ReadBandwidth(buffer, cpus, 1);
  state.read_gbps_2t = state.read_gbps_1t;
  if (cpus.size() >= 2) {
    state.read_gbps_2t = ReadBandwidth(buffer, cpus, 2);
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
