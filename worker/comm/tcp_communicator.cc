// The Communicator over TCP: which bytes a collective moves. TcpLinks moves the bytes, MeetOverTcp finds the
// ranks.

#include "worker/comm/tcp_communicator.h"

#include <string.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/running_clock.h"
#include "base/status_macros.h"
#include "worker/comm/reduce.h"
#include "worker/comm/tcp_links.h"
#include "worker/comm/tcp_rendezvous.h"

namespace somnus {
namespace {

// Above this size, three ranks or more add up a part each: a round more, but a rank sends less than twice the
// message, for any number of ranks. Two ranks send the message once either way.
constexpr int64_t kOneShotBytes = 64 << 10;

enum class Call : uint64_t { kReduce = 1, kReduceParts, kGatherParts, kGather, kBarrier };

uint64_t Describe(Call call, int64_t size, DataType type = DataType::kF32) {
  return static_cast<uint64_t>(call) << 56 | static_cast<uint64_t>(type) << 48 | static_cast<uint64_t>(size);
}

class TcpCommunicator : public Communicator {
 public:
  TcpCommunicator(const GroupOptions& options, std::unique_ptr<TcpLinks> links)
      : rank_(options.rank),
        world_size_(options.world_size),
        buffer_bytes_(*options.buffer_bytes),
        timeout_(options.collective_timeout),
        links_(std::move(links)),
        transfers_(options.world_size),
        arrived_(std::max(buffer_bytes_ + 16 * world_size_,
                          (world_size_ - 1) * std::min(buffer_bytes_, kOneShotBytes))) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }

  absl::Status AllReduceSum(void* data, int64_t count, DataType type) override {
    if (count < 0) return absl::InvalidArgumentError(absl::StrCat("all-reduce of ", count, " elements"));
    const int64_t piece = buffer_bytes_ / SizeOf(type);
    for (int64_t begin = 0; begin < count; begin += piece) {
      const int64_t size = std::min(piece, count - begin);
      char* part = static_cast<char*>(data) + begin * SizeOf(type);
      const bool one_shot = world_size_ == 2 || size * SizeOf(type) <= kOneShotBytes;
      RETURN_IF_ERROR(one_shot ? ReduceOneShot(part, size, type) : ReduceParts(part, size, type));
    }
    return absl::OkStatus();
  }

  absl::Status AllGather(const void* in, int64_t bytes, void* out) override {
    if (bytes < 0) return absl::InvalidArgumentError(absl::StrCat("all-gather of ", bytes, " bytes"));
    if (bytes == 0) return absl::OkStatus();
    char* const all = static_cast<char*>(out);
    if (in != all + rank_ * bytes) memmove(all + rank_ * bytes, in, bytes);
    for (int r = 0; r < world_size_; ++r)
      transfers_[r] = {all + rank_ * bytes, bytes, all + r * bytes, bytes};
    return Exchange(Call::kGather, bytes);
  }

  absl::Status Barrier() override { return BarrierWithin({RunningNow() + timeout_}); }
  absl::Status BarrierWithin(const WaitLimit& limit) {
    std::fill(transfers_.begin(), transfers_.end(), TcpTransfer());
    return links_->Exchange(Describe(Call::kBarrier, 0), transfers_, limit);
  }

  void Abort(const std::string& reason) override { links_->Abort(reason); }
  absl::Status status() const override { return links_->Health(); }

 private:
  absl::Status Exchange(Call call, int64_t size, DataType type = DataType::kF32) {
    return links_->Exchange(Describe(call, size, type), transfers_, {RunningNow() + timeout_});
  }

  absl::Status ReduceOneShot(char* data, int64_t count, DataType type) {
    const int64_t bytes = count * SizeOf(type);
    const void* inputs[kMaxTcpRanks];
    char* next = arrived_.data();
    for (int r = 0; r < world_size_; ++r) {
      inputs[r] = r == rank_ ? data : next;
      if (r == rank_) continue;
      transfers_[r] = {data, bytes, next, bytes};
      next += bytes;
    }
    RETURN_IF_ERROR(Exchange(Call::kReduce, count, type));
    SumInOrder(type, inputs, world_size_, count, data);
    return absl::OkStatus();
  }

  absl::Status ReduceParts(char* data, int64_t count, DataType type) {
    const auto begin_of = [&](int r) { return count * r / world_size_ * SizeOf(type); };
    const auto bytes_of = [&](int r) { return begin_of(r + 1) - begin_of(r); };
    char* const mine = data + begin_of(rank_);
    const int64_t bytes = bytes_of(rank_);
    const void* inputs[kMaxTcpRanks];
    char* next = arrived_.data();
    for (int r = 0; r < world_size_; ++r) {
      inputs[r] = r == rank_ ? mine : next;
      if (r == rank_) continue;
      transfers_[r] = {data + begin_of(r), bytes_of(r), next, bytes};
      next += bytes;
    }
    RETURN_IF_ERROR(Exchange(Call::kReduceParts, count, type));
    SumInOrder(type, inputs, world_size_, bytes / SizeOf(type), mine);
    for (int r = 0; r < world_size_; ++r) transfers_[r] = {mine, bytes, data + begin_of(r), bytes_of(r)};
    return Exchange(Call::kGatherParts, count, type);
  }

  const int rank_, world_size_;
  const int64_t buffer_bytes_;
  const absl::Duration timeout_;
  const std::unique_ptr<TcpLinks> links_;  // asking for the health reads notices that have arrived
  std::vector<TcpTransfer> transfers_;
  std::vector<char> arrived_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeTcpCommunicator(const GroupOptions& group,
                                                                  TcpListener listener) {
  RETURN_IF_ERROR(CheckTcpOptions(group));
  const GroupOptions options = WithDefaults(group, absl::Seconds(30), 4 << 20);
  if (options.world_size == 1) return MakeSingleCommunicator();
  const WaitLimit limit = {RunningNow() + *options.connect_timeout, options.cancelled};
  ASSIGN_OR_RETURN(std::unique_ptr<TcpLinks> links, ConnectTcpLinks(options, std::move(listener), limit));
  auto communicator = std::make_unique<TcpCommunicator>(options, std::move(links));
  // The other ranks may still be connecting to each other.
  RETURN_IF_ERROR(communicator->BarrierWithin(limit));
  return communicator;
}

}  // namespace somnus
