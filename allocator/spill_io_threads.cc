#include <errno.h>
#include <unistd.h>

#include <deque>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "allocator/spill_io.h"

namespace somnus {
namespace {

class ThreadedSpillIo : public SpillIo {
 public:
  ThreadedSpillIo(int fd, int depth) : fd_(fd) {
    for (int i = 0; i < depth; ++i) threads_.emplace_back([this] { Work(); });
  }
  ~ThreadedSpillIo() override {
    {
      absl::MutexLock lock(&mutex_);
      ended_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
  }

  void Write(int slot, const char* data, int64_t bytes, int64_t offset) override {
    absl::MutexLock lock(&mutex_);
    waiting_.push_back({slot, const_cast<char*>(data), bytes, offset, true});
  }
  void Read(int slot, char* data, int64_t bytes, int64_t offset) override {
    absl::MutexLock lock(&mutex_);
    waiting_.push_back({slot, data, bytes, offset, false});
  }
  Completion Wait() override {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](std::deque<Completion>* done) { return !done->empty(); }, &done_));
    const Completion first = done_.front();
    done_.pop_front();
    return first;
  }

 private:
  struct Operation {
    int slot;
    char* data;  // only read by a write
    int64_t bytes, offset;
    bool write;
  };

  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_ || !waiting_.empty(); }

  void Work() {
    while (true) {
      Operation operation;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(this, &ThreadedSpillIo::HasWork));
        if (waiting_.empty()) return;
        operation = waiting_.front();
        waiting_.pop_front();
      }
      const int64_t moved = operation.write ? pwrite(fd_, operation.data, operation.bytes, operation.offset)
                                            : pread(fd_, operation.data, operation.bytes, operation.offset);
      const int64_t result = moved < 0 ? -errno : moved;
      absl::MutexLock lock(&mutex_);
      done_.push_back({operation.slot, result});
    }
  }

  const int fd_;
  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Operation> waiting_ ABSL_GUARDED_BY(mutex_);
  std::deque<Completion> done_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<SpillIo> MakeThreadedSpillIo(int fd, int depth) {
  return std::make_unique<ThreadedSpillIo>(fd, depth);
}

}  // namespace somnus
