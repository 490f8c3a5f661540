#include "worker/host_piece_reserve.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/threads.h"

namespace somnus {

HostPieceReserve::HostPieceReserve(const HostPieceReserveOptions& options, Take take, Free free)
    : options_(options), take_(std::move(take)), free_(std::move(free)) {}

HostPieceReserve::~HostPieceReserve() {
  Stop();
  {
    const std::lock_guard<std::mutex> lock(mu_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (void* memory : discarded_) free_(memory);
}

void HostPieceReserve::Start() {
  const std::lock_guard<std::mutex> lock(mu_);
  if (std::exchange(runs_, true)) return;
  EnsureThread();
}

void HostPieceReserve::Stop() {
  std::vector<void*> ready;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    runs_ = false;
    asked_ = 0;
    error_ = absl::OkStatus();
    ready = ready_;
    SetReady({});
  }
  for (void* piece : ready) free_(piece);
}

absl::StatusOr<std::vector<void*>> HostPieceReserve::Get(int64_t count) {
  const std::lock_guard<std::mutex> lock(mu_);
  if (count <= static_cast<int64_t>(ready_.size())) {
    std::vector<void*> pieces(ready_.end() - count, ready_.end());
    SetReady({ready_.begin(), ready_.end() - count});
    num_given_ += count;
    asked_ = 0;
    EnsureThread();
    return pieces;
  }
  asked_ = count;
  EnsureThread();
  if (!error_.ok()) return error_;
  return absl::UnavailableError(absl::StrCat(count, " pieces of host memory are needed, ", ready_.size(),
                                             " are ready, and the rest is being taken"));
}

void* HostPieceReserve::GetReady() {
  const std::lock_guard<std::mutex> lock(mu_);
  if (ready_.empty()) return nullptr;
  void* const piece = ready_.back();
  SetReady({ready_.begin(), ready_.end() - 1});
  ++num_given_;
  return piece;
}

void HostPieceReserve::GiveBack(void* piece) {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    --num_given_;
    if (runs_) {
      AddReady(piece);
      EnsureThread();
      return;
    }
  }
  free_(piece);
}

void HostPieceReserve::FreeLater(void* memory) {
  const std::lock_guard<std::mutex> lock(mu_);
  discarded_.push_back(memory);
  EnsureThread();
}

int64_t HostPieceReserve::num_ready() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return static_cast<int64_t>(ready_.size());
}

int64_t HostPieceReserve::Wanted() const {
  if (!runs_) return 0;
  return std::min(std::max(options_.num_ahead, asked_), options_.num_most - num_given_);
}

void HostPieceReserve::SetReady(std::vector<void*> ready) {
  ready_ = std::move(ready);
  if (options_.ready_bytes != nullptr)
    *options_.ready_bytes = static_cast<int64_t>(ready_.size()) * options_.piece_bytes;
}

void HostPieceReserve::AddReady(void* piece) {
  if (static_cast<int64_t>(ready_.size()) >= Wanted()) {
    discarded_.push_back(piece);
    return;
  }
  ready_.push_back(piece);
  SetReady(std::move(ready_));
}

// Called under the lock. A tier that no step uses has no thread.
void HostPieceReserve::EnsureThread() {
  changed_.notify_all();
  if (thread_.joinable()) return;
  if (discarded_.empty() && static_cast<int64_t>(ready_.size()) >= Wanted()) return;
  absl::StatusOr<std::thread> thread = StartThread([this] { Run(); });
  if (thread.ok()) thread_ = *std::move(thread);
  error_ = thread.status();
}

void HostPieceReserve::Run() {
  std::unique_lock<std::mutex> lock(mu_);
  while (!ends_) {
    if (!discarded_.empty()) {
      FreeDiscarded(&lock);
    } else if (static_cast<int64_t>(ready_.size()) >= Wanted()) {
      changed_.wait(lock);
    } else if (const absl::Duration rest = failed_at_ + options_.retry - MonotonicNow();
               !error_.ok() && rest > absl::ZeroDuration()) {
      changed_.wait_for(lock, absl::ToChronoNanoseconds(rest));
    } else {
      TakeOne(&lock);
    }
  }
}

void HostPieceReserve::FreeDiscarded(std::unique_lock<std::mutex>* lock) {
  const std::vector<void*> discarded = std::exchange(discarded_, {});
  lock->unlock();
  for (void* memory : discarded) free_(memory);
  lock->lock();
}

void HostPieceReserve::TakeOne(std::unique_lock<std::mutex>* lock) {
  lock->unlock();
  absl::StatusOr<void*> piece = take_();
  lock->lock();
  if (runs_) error_ = piece.status();
  if (!piece.ok()) {
    failed_at_ = MonotonicNow();
    return;
  }
  // A Stop, or pieces that came back, may have overtaken the driver.
  AddReady(*piece);
}

}  // namespace somnus
