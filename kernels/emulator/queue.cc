// How queued work runs: the queue of a stream, and the loop that runs kernels.

#include <algorithm>
#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/emulator/grid.h"
#include "kernels/emulator/runtime_state.h"

namespace somnus::cuda_emulated::emulator {
namespace {

using Clock = std::chrono::steady_clock;

// The ops that one host thread runs at the same time: the op that was asked for, and ops that were started
// beside that op.
class Executor {
 public:
  Executor(Runtime* runtime, const Options& options)
      : runtime_(runtime), options_(options), random_(options.seed) {}

  // Returns when the claimed op and all that were started meanwhile have finished.
  void Run(std::shared_ptr<Stream> stream, Op op) {
    Start(stream, std::move(op));
    while (!active_.empty()) {
      const bool stuck = RunSlices();
      StartOverlapping();
      FinishDone();
      if (!stuck || active_.empty()) {
        last_moved_ = Clock::now();
        continue;
      }
      Op other;
      if (runtime_->ClaimReady(&stream, &other)) {
        Start(stream, std::move(other));
      } else {
        AwaitOtherHostThreads();
      }
    }
  }

 private:
  struct Active {
    std::unique_ptr<Grid> grid;
    std::shared_ptr<Stream> stream;
    bool may_overlap = false;  // the next op of the stream may start as soon as this op allows
    bool done = false;
  };

  void Start(const std::shared_ptr<Stream>& stream, Op op, const Grid* previous = nullptr) {
    last_moved_ = Clock::now();
    if (op.kernel == nullptr) {
      if (op.run) op.run();
      runtime_->Finish(stream.get(), false);
      return;
    }
    const uint64_t seed = options_.seed * 1000003 + started_++ * 7919 + stream->done;
    active_.push_back(
        {std::make_unique<Grid>(op.kernel, seed, previous), stream, Random(seed).Below(4) != 0});
  }

  // Runs a slice of each op, late starters first: while these make progress, earlier ops mostly have to wait,
  // so that data that a kernel should have waited for is missing. Returns true when all ops only spin.
  bool RunSlices() {
    bool stuck = true;
    for (size_t i = active_.size(); i-- > 0;) {
      Active& kernel = active_[i];
      if (kernel.done || (!stuck && random_.Below(8) != 0)) continue;
      const Grid::Slice slice = kernel.grid->Run();
      kernel.done = slice == Grid::Slice::kDone;
      stuck = stuck && slice == Grid::Slice::kStuck;
    }
    return stuck;
  }

  void StartOverlapping() {
    for (size_t i = 0; i < active_.size(); ++i) {
      if (active_[i].done || !active_[i].may_overlap || !active_[i].grid->LetsNextStart()) continue;
      active_[i].may_overlap = false;
      Op next;
      const std::shared_ptr<Stream> stream = active_[i].stream;
      if (!runtime_->ClaimOverlapping(stream.get(), &next)) continue;
      Start(stream, std::move(next), active_[i].grid.get());
    }
  }

  // Finishes ops in the order of each stream, whichever was done first.
  void FinishDone() {
    for (size_t i = 0; i < active_.size();) {
      const std::shared_ptr<Stream> stream = active_[i].stream;
      const auto same = [&](const Active& other) { return other.stream == stream; };
      const bool oldest =
          std::none_of(active_.begin(), active_.begin() + static_cast<std::ptrdiff_t>(i), same);
      if (!active_[i].done || !oldest) {
        ++i;
        continue;
      }
      active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
      runtime_->Finish(stream.get(), std::any_of(active_.begin(), active_.end(), same));
    }
  }

  void AwaitOtherHostThreads() {
    if (ProgressCount() != last_progress_) {
      last_progress_ = ProgressCount();
      last_moved_ = Clock::now();
    }
    if (Clock::now() - last_moved_ > std::chrono::milliseconds(options_.spin_limit_ms)) DieSpinning();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }

  [[noreturn]] void DieSpinning() {
    std::string text = "deadlock, all threads spin and nothing else is queued that could help:";
    for (const Active& kernel : active_) {
      absl::StrAppend(&text, "\n ", kernel.grid->Describe(), "\n", kernel.grid->DescribeWaits());
    }
    Die(text);
  }

  Runtime* const runtime_;
  const Options options_;
  Random random_;
  std::vector<Active> active_;  // in the order of starts
  uint64_t started_ = 0;
  uint64_t last_progress_ = 0;
  Clock::time_point last_moved_ = Clock::now();
};

}  // namespace

Runtime& Runtime::Get() {
  static Runtime* const runtime = new Runtime;
  return *runtime;
}

bool Done(const Ticket& ticket) { return ticket.stream == nullptr || ticket.stream->done >= ticket.number; }

std::shared_ptr<Stream> Runtime::AddStream(bool blocking) {
  auto stream = std::make_shared<Stream>();
  stream->device = CurrentDevice();
  stream->blocking = blocking;
  streams_[stream.get()] = stream;
  return stream;
}

std::shared_ptr<Stream> Runtime::Find(cudaStream_t handle) {
  if (handle == nullptr) {
    std::shared_ptr<Stream>& legacy = legacy_[CurrentDevice()];
    if (legacy == nullptr) {
      legacy = AddStream(true);
      legacy->legacy = true;
    }
    return legacy;
  }
  const auto it = streams_.find(handle);
  return it == streams_.end() ? nullptr : it->second;
}

cudaError_t Runtime::Enqueue(Lock& lock, const std::shared_ptr<Stream>& stream, Op op) {
  if (stream->capture != nullptr) {
    if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    Graph& graph = stream->capture->graph;
    graph.nodes.push_back({std::move(op), stream->capture_tail});
    stream->capture_tail = {static_cast<int>(graph.nodes.size()) - 1};
    return cudaSuccess;
  }
  if (stream->legacy) {
    for (auto& [id, capture] : captures_) {
      if (!capture->origin->blocking || capture->origin->device != stream->device) continue;
      capture->invalid = true;
      return cudaErrorStreamCaptureImplicit;
    }
  }
  for (auto& [handle, other] : streams_) {
    if (other == stream || other->device != stream->device || !other->blocking || !stream->blocking) continue;
    if (stream->legacy || other->legacy) op.waits.push_back(TailOf(other));
  }
  stream->queue.push_back(std::move(op));
  ++stream->queued;
  if (options.eager) RunUpTo(lock, TailOf(stream));
  return cudaSuccess;
}

void Runtime::RunUpTo(Lock& lock, const Ticket& ticket) {
  const std::shared_ptr<Stream> stream = ticket.stream;
  while (!Done(ticket)) {
    if (stream->running) {
      changed_.wait(lock);
      continue;
    }
    const std::vector<Ticket> waits = stream->queue.front().waits;
    bool waited = false;
    for (const Ticket& wait : waits) {
      if (Done(wait)) continue;
      RunUpTo(lock, wait);
      waited = true;
    }
    if (waited) continue;  // The lock was free meanwhile: look again.
    Op op = std::move(stream->queue.front());
    stream->queue.pop_front();
    stream->running = true;
    lock.unlock();
    Execute(stream, std::move(op));
    lock.lock();
  }
}

void Runtime::RunAll(Lock& lock) {
  std::vector<Ticket> tails;
  for (auto& [handle, stream] : streams_) {
    if (stream->device == CurrentDevice()) tails.push_back(TailOf(stream));
  }
  for (const Ticket& tail : tails) RunUpTo(lock, tail);
}

bool Runtime::ClaimReady(std::shared_ptr<Stream>* claimed, Op* op) {
  Lock lock = Acquire();
  for (auto& [handle, stream] : streams_) {
    if (stream->running || stream->queue.empty()) continue;
    bool ready = true;
    for (const Ticket& wait : stream->queue.front().waits) ready = ready && Done(wait);
    if (!ready) continue;
    *op = std::move(stream->queue.front());
    stream->queue.pop_front();
    stream->running = true;
    *claimed = stream;
    return true;
  }
  return false;
}

bool Runtime::ClaimOverlapping(Stream* stream, Op* op) {
  const Lock lock = Acquire();
  if (stream->queue.empty()) return false;
  const Op& next = stream->queue.front();
  if (next.kernel == nullptr || !next.kernel->overlaps_previous) return false;
  for (const Ticket& wait : next.waits) {
    if (!Done(wait)) return false;
  }
  *op = std::move(stream->queue.front());
  stream->queue.pop_front();
  return true;
}

void Runtime::Finish(Stream* stream, bool more) {
  const Lock lock = Acquire();
  stream->running = more;
  ++stream->done;
  changed_.notify_all();
}

void Runtime::Execute(std::shared_ptr<Stream> stream, Op op) {
  Executor(this, GetOptions()).Run(std::move(stream), std::move(op));
}

}  // namespace somnus::cuda_emulated::emulator
