// The shared-memory Communicator: which bytes a collective moves, and when. ShmWaiter waits for the other
// ranks, MeetInSharedMemory finds the other ranks.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/comm/communicator.h"
#include "worker/comm/reduce.h"
#include "worker/comm/shm_rendezvous.h"
#include "worker/comm/shm_waiter.h"

namespace somnus {
namespace {

// Above this size each rank sums a part of the bytes, and the parts are gathered: a round more, but each rank
// reads 1/world_size.
constexpr int64_t kOneShotBytes = 64 << 10;

enum class Call : uint64_t { kReduce = 1, kReduceParts, kGatherParts, kGather, kBarrier };

uint64_t Describe(Call call, int64_t size, DataType type = DataType::kF32) {
  return static_cast<uint64_t>(call) << 56 | static_cast<uint64_t>(type) << 48 | static_cast<uint64_t>(size);
}

class ShmCommunicator : public Communicator {
 public:
  ShmCommunicator(const GroupOptions& options, std::unique_ptr<ShmMapping> mapping)
      : rank_(options.rank),
        world_size_(options.world_size),
        buffer_bytes_(*options.buffer_bytes),
        mapping_(std::move(mapping)),
        waiter_(mapping_->header(), &mapping_->locks(), options) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }

  absl::Status AllReduceSum(void* data, int64_t count, DataType type) override {
    RETURN_IF_ERROR(failed_);
    if (count < 0) return absl::InvalidArgumentError(absl::StrCat("all-reduce of ", count, " elements"));
    const int64_t piece = buffer_bytes_ / SizeOf(type);
    for (int64_t begin = 0; begin < count; begin += piece) {
      const int64_t size = std::min(piece, count - begin);
      char* part = static_cast<char*>(data) + begin * SizeOf(type);
      const bool one_shot = size * SizeOf(type) <= kOneShotBytes;
      RETURN_IF_ERROR(one_shot ? ReduceOneShot(part, size, type) : ReduceParts(part, size, type));
    }
    return absl::OkStatus();
  }

  absl::Status AllGather(const void* in, int64_t bytes, void* out) override {
    RETURN_IF_ERROR(failed_);
    if (bytes < 0) return absl::InvalidArgumentError(absl::StrCat("all-gather of ", bytes, " bytes"));
    for (int64_t begin = 0; begin < bytes; begin += buffer_bytes_) {
      const int64_t size = std::min(buffer_bytes_, bytes - begin);
      const uint32_t round = NextRound();
      memcpy(Buffer(rank_, round), static_cast<const char*>(in) + begin, size);
      RETURN_IF_ERROR(Exchange(round, Describe(Call::kGather, bytes)));
      for (int r = 0; r < world_size_; ++r) {
        memcpy(static_cast<char*>(out) + r * bytes + begin, Buffer(r, round), size);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Barrier() override {
    RETURN_IF_ERROR(failed_);
    return Exchange(NextRound(), Describe(Call::kBarrier, 0));
  }

  void Abort(const std::string& reason) override { waiter_.Abort(reason); }
  absl::Status status() const override { return waiter_.Health(); }

 private:
  uint32_t NextRound() { return ++round_; }
  char* Buffer(int rank, uint32_t round) const { return mapping_->Buffer(rank, round % 2); }

  absl::Status Exchange(uint32_t round, uint64_t call) {
    waiter_.Publish(round, call);
    failed_ = waiter_.AwaitAll(round, call);
    return failed_;
  }

  absl::Status ReduceOneShot(char* data, int64_t count, DataType type) {
    const uint32_t round = NextRound();
    memcpy(Buffer(rank_, round), data, count * SizeOf(type));
    RETURN_IF_ERROR(Exchange(round, Describe(Call::kReduce, count, type)));
    const void* inputs[kMaxShmRanks];
    for (int r = 0; r < world_size_; ++r) inputs[r] = r == rank_ ? data : Buffer(r, round);
    SumInOrder(type, inputs, world_size_, count, data);
    return absl::OkStatus();
  }

  absl::Status ReduceParts(char* data, int64_t count, DataType type) {
    const auto begin_of = [&](int r) { return count * r / world_size_ * SizeOf(type); };
    const int64_t begin = begin_of(rank_), size = begin_of(rank_ + 1) - begin;
    const uint32_t first = NextRound();
    memcpy(Buffer(rank_, first), data, count * SizeOf(type));
    RETURN_IF_ERROR(Exchange(first, Describe(Call::kReduceParts, count, type)));
    const void* inputs[kMaxShmRanks];
    for (int r = 0; r < world_size_; ++r) inputs[r] = (r == rank_ ? data : Buffer(r, first)) + begin;
    const uint32_t second = NextRound();
    SumInOrder(type, inputs, world_size_, size / SizeOf(type), Buffer(rank_, second));
    RETURN_IF_ERROR(Exchange(second, Describe(Call::kGatherParts, count, type)));
    for (int r = 0; r < world_size_; ++r) {
      memcpy(data + begin_of(r), Buffer(r, second), begin_of(r + 1) - begin_of(r));
    }
    return absl::OkStatus();
  }

  const int rank_, world_size_;
  const int64_t buffer_bytes_;
  const std::unique_ptr<ShmMapping> mapping_;
  ShmWaiter waiter_;  // leaves the group when destroyed, so before the mapping
  uint32_t round_ = 0;
  // Once failed, buffers are not written any more: a slower rank may still read the last good round.
  absl::Status failed_;
};

class SingleCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  absl::Status AllReduceSum(void* data, int64_t count, DataType type) override { return absl::OkStatus(); }
  absl::Status AllGather(const void* in, int64_t bytes, void* out) override {
    if (bytes > 0) memmove(out, in, bytes);
    return absl::OkStatus();
  }
  absl::Status Barrier() override { return absl::OkStatus(); }
  void Abort(const std::string& reason) override {}
};

}  // namespace

std::unique_ptr<Communicator> MakeSingleCommunicator() { return std::make_unique<SingleCommunicator>(); }

absl::StatusOr<std::unique_ptr<Communicator>> MakeShmCommunicator(const GroupOptions& group) {
  RETURN_IF_ERROR(CheckGroupOptions(group, kMaxShmRanks));
  const GroupOptions options = WithDefaults(group, absl::Seconds(30), 1 << 20);
  if (options.world_size == 1) return MakeSingleCommunicator();
  ASSIGN_OR_RETURN(std::unique_ptr<ShmMapping> mapping, MeetInSharedMemory(options));
  return std::make_unique<ShmCommunicator>(options, std::move(mapping));
}

}  // namespace somnus
