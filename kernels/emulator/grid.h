#pragma once
// A running kernel: its blocks, the blocks' threads as fibers, and the points where threads meet. Used only
// by the host thread that runs the kernel.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/emulator/barrier_order.h"
#include "kernels/emulator/device.h"
#include "kernels/emulator/fiber.h"
#include "kernels/emulator/race_detector.h"
#include "kernels/emulator/runtime.h"

namespace somnus::cuda_emulated::emulator {

// xorshift64*.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du) {
    for (int i = 0; i < 4; ++i) Next();
  }
  uint64_t Next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1du >> 11;
  }
  // [0, n)
  size_t Below(size_t n) { return static_cast<size_t>(Next() % n); }

 private:
  uint64_t state_;
};

struct Block;
class Grid;

struct Thread {
  // A cp.async that has been issued and not performed.
  struct Copy {
    char* dst;
    const char* src;  // nullptr: zeros
    int bytes;
    int group;
  };

  Fiber fiber;
  Block* block = nullptr;
  uint3 index{};
  int linear = 0;
  bool exited = false;
  // The name of the awaited event, for messages; nullptr while the thread can run.
  const char* waits_for = nullptr;
  Site site;
  int barrier = 0;
  // In Meet:
  uint32_t mask = 0;
  void* payload = nullptr;
  bool unobserved = false;  // acts for all lanes of the warp now: accesses are not the thread's own

  std::vector<Copy> copies;
  int open_group = 0;  // number of the group that the next Commit closes
};

struct Warp {
  uint32_t present = 0;
  uint32_t exited = 0;
  uint32_t meeting = 0;  // lanes that wait in Meet
};

struct Barrier {
  int expected = 0;  // of a named barrier: as the first comer said
  int arrived = 0;
  std::vector<Thread*> waiting;
};

// How a block's threads are ordered when several may run.
enum class Order { kRandom, kForward, kBackward };

struct Block {
  Block(Grid* grid, uint3 index, int64_t number, uint64_t seed);
  ~Block();

  void MakeRunnable(std::vector<Thread*>& threads);
  // Runs up to `quanta` threads until each gives way.
  void Run(int quanta);
  void Exit(Thread* thread);
  void CheckBarrier0();
  void Release(Barrier* barrier);
  bool done() const { return alive == 0; }
  // Nothing to do before the kernel in front ends.
  bool AwaitsPrevious() const;
  Thread* lane(int warp, int lane) { return threads[warp * 32 + lane].get(); }

  Grid* const grid;
  const uint3 index;
  const int64_t number;  // in the grid, x fastest
  Random random;
  const Order order;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  Barrier barriers[16];
  std::vector<Thread*> runnable;
  std::vector<Thread*> yielded;            // gave way; run again when no other can
  std::vector<Thread*> awaiting_previous;  // in GridDependencyWait
  bool lets_next_start = false;
  int alive = 0;
  int idle_rounds = 0;     // times that all threads gave way while spinning, since the last progress
  char* shared = nullptr;  // exactly the launch's bytes, aligned to 128
  // For the race detector.
  BarrierOrder barrier_order;
  AccessShadow shared_accesses;
  bool has_acquired = false;

 private:
  Thread* Pick();
  [[noreturn]] void Deadlock();
};

class Grid {
 public:
  enum class Slice { kRan, kStuck, kDone };

  // `previous`: the kernel in front of this grid, where that kernel may still run. May be destroyed before
  // this grid.
  Grid(std::shared_ptr<const KernelLaunch> launch, uint64_t seed, const Grid* previous = nullptr);
  ~Grid();

  // Runs the blocks for a while. kStuck: every thread that can run only spins, and no further block fits on
  // the chip.
  Slice Run();
  const KernelLaunch& launch() const { return *launch_; }
  // nullptr without a search for races.
  RaceDetector* races() const { return races_.get(); }
  bool previous_ended() const { return previous_ended_ == nullptr || *previous_ended_; }
  // Every block has called GridDependencyLaunch or ended.
  bool LetsNextStart() const;
  // "kernel NAME<<<(2, 1, 1), (128, 1, 1)>>>"
  std::string Describe() const;
  // Describes, for a message, the waits of a block's threads (nullptr: of all running blocks): a line for
  // each of up to 8 kinds of waiting.
  std::string DescribeWaits(const Block* block = nullptr) const;

 private:
  bool Admit();

  const std::shared_ptr<const KernelLaunch> launch_;
  const std::shared_ptr<const bool> previous_ended_;
  const std::shared_ptr<bool> ended_ = std::make_shared<bool>(false);  // set when the last thread has ended
  const std::shared_ptr<RaceDetector> races_;
  Random random_;
  const int64_t num_blocks_;
  int64_t started_ = 0;
  // Blocks start in the order (first_ + i * stride_) % num_blocks_.
  int64_t first_ = 0;
  int64_t stride_ = 1;
  size_t window_ = 1;        // blocks that run at the same time
  size_t max_resident_ = 1;  // that the chip holds
  std::vector<std::unique_ptr<Block>> resident_;
};

// The thread that runs now on this host thread; nullptr outside kernels.
Thread* CurrentThread();

// Prints "CUDA emulator: " and the message, and aborts the process.
[[noreturn]] void Die(const std::string& message);
// "ScaleKernel<float>" by the symbols of the executable, or the address.
std::string FunctionName(const void* function);
std::string Describe(const Site& site);
std::string Describe(uint3 index);

// Counts actions of threads that other threads may wait for, over all host threads.
uint64_t ProgressCount();

}  // namespace somnus::cuda_emulated::emulator
