#include "kernels/emulator/grid.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/emulator/barrier_sites.h"
#include "kernels/emulator/options.h"

namespace somnus::cuda_emulated::emulator {
namespace {

// After this many rounds in which all of a block's threads spun, the block waits for other blocks to run.
constexpr int kIdleRounds = 8;
constexpr int kMaxSmThreads = 2048;
constexpr int kMaxSmBlocks = 32;
constexpr int64_t kSmSharedBytes = 228 << 10;
constexpr int64_t kReservedSharedBytes = 1 << 10;  // of each block, by the system

constinit thread_local Thread* current_thread = nullptr;

void RunThread(void* argument) {
  Thread* const thread = static_cast<Thread*>(argument);
  thread->block->grid->launch().body();
  thread->block->Exit(thread);
}

int NumWarps(const dim3& block) { return static_cast<int>((block.x * block.y * block.z + 31) / 32); }

// How many blocks of this shape a multiprocessor of an H100 holds, registers aside.
int BlocksPerMultiprocessor(int64_t threads, int64_t shared_bytes) {
  const int64_t whole_warps = (threads + 31) / 32 * 32;
  return static_cast<int>(std::min({int64_t{kMaxSmBlocks}, kMaxSmThreads / whole_warps,
                                    kSmSharedBytes / (shared_bytes + kReservedSharedBytes)}));
}

}  // namespace

Thread* CurrentThread() { return current_thread; }

void Die(const std::string& message) {
  std::fprintf(stderr, "CUDA emulator: %s\n", message.c_str());
  std::fflush(stderr);
  std::abort();
}

std::string Describe(const Site& site) { return absl::StrCat(site.file_name(), ":", site.line()); }
std::string Describe(uint3 i) { return absl::StrFormat("(%d, %d, %d)", i.x, i.y, i.z); }

// ---- Block

Block::Block(Grid* grid, uint3 index, int64_t number, uint64_t seed)
    : grid(grid),
      index(index),
      number(number),
      random(seed),
      order(random.Below(2) == 0   ? Order::kRandom
            : random.Below(2) == 0 ? Order::kForward
                                   : Order::kBackward),
      barrier_order(NumWarps(grid->launch().block)) {
  const KernelLaunch& launch = grid->launch();
  if (launch.shared_bytes > 0) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 128, static_cast<size_t>(launch.shared_bytes)) != 0) Die("out of memory");
    shared = static_cast<char*>(memory);
    std::memset(shared, 0xff, static_cast<size_t>(launch.shared_bytes));
  }
  alive = static_cast<int>(launch.block.x * launch.block.y * launch.block.z);
  threads.reserve(static_cast<size_t>(alive));
  warps.resize(static_cast<size_t>(alive + 31) / 32);
  std::vector<Thread*> all;
  for (int i = 0; i < alive; ++i) {
    auto thread = std::make_unique<Thread>();
    thread->block = this;
    thread->linear = i;
    const unsigned n = static_cast<unsigned>(i);
    thread->index = {n % launch.block.x, n / launch.block.x % launch.block.y,
                     n / (launch.block.x * launch.block.y)};
    warps[n / 32].present |= 1u << (n % 32);
    all.push_back(thread.get());
    threads.push_back(std::move(thread));
  }
  MakeRunnable(all);
}

Block::~Block() { std::free(shared); }

// Empties `released`.
void Block::MakeRunnable(std::vector<Thread*>& released) {
  for (Thread* thread : released) thread->waits_for = nullptr;
  if (order == Order::kRandom) {
    for (size_t i = released.size(); i > 1; --i) std::swap(released[i - 1], released[random.Below(i)]);
  } else {
    // Threads are taken from the back.
    const bool forward = order == Order::kForward;
    std::sort(released.begin(), released.end(),
              [&](Thread* a, Thread* b) { return forward ? a->linear > b->linear : a->linear < b->linear; });
  }
  runnable.insert(runnable.end(), released.begin(), released.end());
  released.clear();
}

Thread* Block::Pick() {
  if (runnable.empty()) {
    ++idle_rounds;
    MakeRunnable(yielded);
    if (grid->previous_ended()) MakeRunnable(awaiting_previous);
    if (runnable.empty()) return nullptr;
  }
  // Mostly the newest first, so that warps run apart; sometimes any.
  if (order == Order::kRandom && random.Below(4) == 0)
    std::swap(runnable[random.Below(runnable.size())], runnable.back());
  Thread* const thread = runnable.back();
  runnable.pop_back();
  return thread;
}

void Block::Run(int quanta) {
  const KernelLaunch& launch = grid->launch();
  blockDim = launch.block;
  gridDim = launch.grid;
  blockIdx = index;
  for (int i = 0; i < quanta && alive > 0; ++i) {
    Thread* const thread = Pick();
    if (thread == nullptr && AwaitsPrevious()) return;
    if (thread == nullptr) Deadlock();
    threadIdx = thread->index;
    current_thread = thread;
    if (!thread->fiber.started()) thread->fiber.Start(&RunThread, thread);
    thread->fiber.Resume();
    current_thread = nullptr;
    if (i > 0 && runnable.empty() && idle_rounds >= kIdleRounds) break;
  }
}

bool Block::AwaitsPrevious() const {
  return runnable.empty() && yielded.empty() && !awaiting_previous.empty() && !grid->previous_ended();
}

void Block::Exit(Thread* thread) {
  thread->exited = true;
  idle_rounds = 0;
  --alive;
  Warp& warp = warps[static_cast<size_t>(thread->linear / 32)];
  const uint32_t bit = 1u << (thread->linear % 32);
  warp.exited |= bit;
  for (int i = 0; i < 32; ++i) {
    if ((warp.meeting >> i & 1) == 0) continue;
    const Thread* const other = lane(thread->linear / 32, i);
    if ((other->mask & bit) == 0) continue;
    Fail(absl::StrFormat("this thread has ended, but lane %d waits for it in %s with mask 0x%08x", i,
                         other->waits_for, other->mask)
             .c_str(),
         other->site);
  }
  if (alive > 0) CheckBarrier0();
}

void Block::CheckBarrier0() {
  if (barriers[0].arrived == 0 || barriers[0].arrived != alive) return;
  if (grid->races() != nullptr)
    barrier_order.PassBlockBarrier(BarrierSite(barriers[0].waiting.front()->site));
  Release(&barriers[0]);
}

void Block::Release(Barrier* barrier) {
  idle_rounds = 0;
  barrier->arrived = 0;
  barrier->expected = 0;
  MakeRunnable(barrier->waiting);
}

void Block::Deadlock() {
  Die(absl::StrCat(grid->Describe(), ", block ", emulator::Describe(index),
                   ": deadlock, no thread can go on\n", grid->DescribeWaits(this)));
}

// ---- Grid

Grid::Grid(std::shared_ptr<const KernelLaunch> launch, uint64_t seed, const Grid* previous)
    : launch_(std::move(launch)),
      previous_ended_(previous == nullptr ? nullptr : previous->ended_),
      races_(GetOptions().find_races
                 ? std::make_shared<RaceDetector>(this, previous == nullptr ? nullptr : previous->races_)
                 : nullptr),
      random_(seed),
      num_blocks_(int64_t{launch_->grid.x} * launch_->grid.y * launch_->grid.z) {
  const dim3& block = launch_->block;
  const int per_sm = BlocksPerMultiprocessor(int64_t{block.x} * block.y * block.z, launch_->shared_bytes);
  max_resident_ = static_cast<size_t>(per_sm) * static_cast<size_t>(GetOptions().num_sms);
  window_ = 1 + random_.Below(4);
  first_ = static_cast<int64_t>(random_.Below(static_cast<size_t>(num_blocks_)));
  stride_ = 1 + static_cast<int64_t>(random_.Below(static_cast<size_t>(num_blocks_)));
  while (std::gcd(stride_, num_blocks_) != 1) ++stride_;
}

Grid::~Grid() = default;

bool Grid::Admit() {
  if (started_ == num_blocks_ || resident_.size() >= max_resident_) return false;
  const unsigned i =
      static_cast<unsigned>((first_ + static_cast<__int128>(started_) * stride_) % num_blocks_);
  ++started_;
  const dim3& grid = launch_->grid;
  const uint3 index{i % grid.x, i / grid.x % grid.y, i / (grid.x * grid.y)};
  resident_.push_back(std::make_unique<Block>(this, index, int64_t{i}, random_.Next()));
  return true;
}

Grid::Slice Grid::Run() {
  while (resident_.size() < window_ && Admit()) {
  }
  if (resident_.empty()) return Slice::kDone;
  bool stuck = true, awaits_previous = false;
  for (size_t i = 0; i < resident_.size();) {
    Block& block = *resident_[i];
    block.Run(static_cast<int>(1 + random_.Below(block.threads.size())));
    awaits_previous = awaits_previous || block.AwaitsPrevious();
    stuck = stuck && !block.done() && (block.idle_rounds >= kIdleRounds || block.AwaitsPrevious());
    if (block.done()) {
      std::swap(resident_[i], resident_.back());
      resident_.pop_back();
    } else {
      ++i;
    }
  }
  if (resident_.empty() && started_ == num_blocks_) {
    *ended_ = true;
    if (races_ != nullptr) races_->End();
    return Slice::kDone;
  }
  if (stuck) {
    // More blocks would only wait as well.
    if (awaits_previous || !Admit()) return Slice::kStuck;
    window_ = std::max(window_, resident_.size());
  }
  return Slice::kRan;
}

bool Grid::LetsNextStart() const {
  if (started_ != num_blocks_) return false;
  return std::all_of(resident_.begin(), resident_.end(),
                     [](const auto& block) { return block->lets_next_start; });
}

std::string Grid::Describe() const {
  const dim3 &g = launch_->grid, &b = launch_->block;
  return absl::StrFormat("kernel %s<<<(%d, %d, %d), (%d, %d, %d), %d>>>", FunctionName(launch_->function),
                         g.x, g.y, g.z, b.x, b.y, b.z, launch_->shared_bytes);
}

std::string Grid::DescribeWaits(const Block* only) const {
  struct Kind {
    int count = 0;
    std::string first;
  };
  std::map<std::string, Kind> kinds;
  for (const auto& block : resident_) {
    if (only != nullptr && block.get() != only) continue;
    for (const auto& thread : block->threads) {
      std::string what = "have ended";
      if (!thread->exited && thread->waits_for == nullptr) what = "spin or can run";
      if (!thread->exited && thread->waits_for != nullptr) {
        what = absl::StrCat("wait for ", thread->waits_for, " at ", emulator::Describe(thread->site));
        if (thread->mask != 0) absl::StrAppendFormat(&what, " with mask 0x%08x", thread->mask);
      }
      Kind& kind = kinds[what];
      if (kind.count++ == 0) {
        kind.first = absl::StrCat("block ", emulator::Describe(block->index), " thread ",
                                  emulator::Describe(thread->index));
      }
    }
  }
  std::string text;
  int lines = 0;
  for (const auto& [what, kind] : kinds) {
    if (++lines > 8) break;
    absl::StrAppend(&text, "  ", kind.count, " threads ", what, "; the first is ", kind.first, "\n");
  }
  return text;
}

}  // namespace somnus::cuda_emulated::emulator
