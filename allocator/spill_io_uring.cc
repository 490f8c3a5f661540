#include <errno.h>
#include <liburing.h>

#include "allocator/spill_io.h"

namespace somnus {
namespace {

class UringSpillIo : public SpillIo {
 public:
  explicit UringSpillIo(int fd) : fd_(fd) {}
  ~UringSpillIo() override {
    if (!ready_) return;
    while (under_way_ > 0) Wait();
    io_uring_queue_exit(&ring_);
  }

  // False where the kernel or a sandbox refuses, or is too old for plain reads and writes (before Linux 5.6).
  bool Init(int depth) {
    ready_ = io_uring_queue_init(depth, &ring_, 0) == 0;
    if (!ready_) return false;
    io_uring_probe* const probe = io_uring_get_probe_ring(&ring_);
    const bool writes = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_WRITE);
    if (probe != nullptr) io_uring_free_probe(probe);
    return writes;
  }

  void Write(int slot, const char* data, int64_t bytes, int64_t offset) override {
    io_uring_sqe* const entry = NextEntry();
    io_uring_prep_write(entry, fd_, data, bytes, offset);
    Submit(entry, slot);
  }
  void Read(int slot, char* data, int64_t bytes, int64_t offset) override {
    io_uring_sqe* const entry = NextEntry();
    io_uring_prep_read(entry, fd_, data, bytes, offset);
    Submit(entry, slot);
  }
  Completion Wait() override {
    io_uring_cqe* event = nullptr;
    // Entries that an interrupted submission left behind go along.
    while (io_uring_submit_and_wait(&ring_, 1) < 0 || io_uring_peek_cqe(&ring_, &event) != 0) {
    }
    const Completion done = {static_cast<int>(io_uring_cqe_get_data64(event)), event->res};
    io_uring_cqe_seen(&ring_, event);
    --under_way_;
    return done;
  }

 private:
  // Never null: the ring has an entry for each slot.
  io_uring_sqe* NextEntry() { return io_uring_get_sqe(&ring_); }
  void Submit(io_uring_sqe* entry, int slot) {
    io_uring_sqe_set_data64(entry, slot);
    ++under_way_;
    io_uring_submit(&ring_);
  }

  const int fd_;
  io_uring ring_ = {};
  bool ready_ = false;
  int under_way_ = 0;
};

}  // namespace

std::unique_ptr<SpillIo> MakeUringSpillIo(int fd, int depth) {
  auto io = std::make_unique<UringSpillIo>(fd);
  if (!io->Init(depth)) return nullptr;
  return io;
}

}  // namespace somnus
