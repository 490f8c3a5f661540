// How queued work runs: the queue of a stream, and the loop that runs kernels.

#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/emulator/grid.h"
#include "kernels/cuda/emulator/runtime_state.h"

namespace somnus::cuda_emulated::emulator {
namespace {

using Clock = std::chrono::steady_clock;

// A kernel that this host thread runs, among others.
struct Active {
  std::unique_ptr<Grid> grid;
  std::shared_ptr<Stream> stream;
};

[[noreturn]] void DieSpinning(const std::vector<Active>& active) {
  std::string text = "deadlock, all threads spin and nothing else is queued that could help:";
  for (const Active& kernel : active) {
    absl::StrAppend(&text, "\n ", kernel.grid->Describe(), "\n", kernel.grid->DescribeWaits());
  }
  Die(text);
}

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

void Runtime::Finish(Stream* stream) {
  const Lock lock = Acquire();
  stream->running = false;
  ++stream->done;
  changed_.notify_all();
}

void Runtime::Execute(std::shared_ptr<Stream> stream, Op op) {
  std::vector<Active> active;
  uint64_t last_progress = ProgressCount();
  Clock::time_point last_moved = Clock::now();
  const Options now = GetOptions();
  bool claimed = true;
  for (;;) {
    if (claimed) {
      if (op.kernel != nullptr) {
        const uint64_t seed = now.seed * 1000003 + stream->done;
        active.push_back({std::make_unique<Grid>(op.kernel, seed), stream});
      } else {
        if (op.run) op.run();
        Finish(stream.get());
      }
      op = {};
      last_moved = Clock::now();
    }
    claimed = false;
    bool stuck = true;
    for (size_t i = 0; i < active.size();) {
      const Grid::Slice slice = active[i].grid->Run();
      stuck = stuck && slice == Grid::Slice::kStuck;
      if (slice == Grid::Slice::kDone) {
        const std::shared_ptr<Stream> finished = active[i].stream;
        active.erase(active.begin() + static_cast<std::ptrdiff_t>(i));
        Finish(finished.get());
      } else {
        ++i;
      }
    }
    if (active.empty()) return;
    if (!stuck || ProgressCount() != last_progress) {
      last_progress = ProgressCount();
      last_moved = Clock::now();
    }
    if (!stuck) continue;
    claimed = ClaimReady(&stream, &op);
    if (claimed) continue;
    if (Clock::now() - last_moved > std::chrono::milliseconds(now.spin_limit_ms)) DieSpinning(active);
    std::this_thread::sleep_for(std::chrono::microseconds(20));  // Another host thread has to act.
  }
}

}  // namespace somnus::cuda_emulated::emulator
