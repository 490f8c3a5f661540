#pragma once
// The reads and writes of a spill file. Writes are moments (tests/worker/moments.h), so that each write can
// find the disk full.

#include <errno.h>

#include <deque>
#include <memory>
#include <utility>

#include "allocator/spill_io.h"
#include "tests/worker/moments.h"

namespace somnus {

class FaultySpillIo : public SpillIo {
 public:
  explicit FaultySpillIo(std::unique_ptr<SpillIo> io) : io_(std::move(io)) {}

  void Write(int slot, const char* data, int64_t bytes, int64_t offset) override {
    if (Reach("write").ok()) return io_->Write(slot, data, bytes, offset);
    refused_.push_back({slot, -ENOSPC});
  }
  void Read(int slot, char* data, int64_t bytes, int64_t offset) override {
    io_->Read(slot, data, bytes, offset);
  }
  Completion Wait() override {
    if (refused_.empty()) return io_->Wait();
    const Completion first = refused_.front();
    refused_.pop_front();
    return first;
  }

 private:
  const std::unique_ptr<SpillIo> io_;
  std::deque<Completion> refused_;
};

}  // namespace somnus
