// A link through shared memory: the buffers and stamps of shm_segment.h. The sender's stamp counts the pieces
// that the sender has filled, the receiver's stamp the pieces that the receiver has taken. Piece k lies in
// the sender's buffer k % 2, which the sender fills once the receiver has stamped k - 2.

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/comm/shm_rendezvous.h"
#include "worker/comm/shm_waiter.h"
#include "worker/comm/stage_link.h"

namespace somnus {
namespace {

class ShmLink : public StageLink {
 public:
  ShmLink(const GroupOptions& options, std::unique_ptr<ShmMapping> mapping)
      : rank_(options.rank),
        buffer_bytes_(*options.buffer_bytes),
        mapping_(std::move(mapping)),
        waiter_(mapping_->header(), &mapping_->locks(), options) {}

  absl::Status Send(const void* data, int64_t bytes) override {
    for (int64_t begin = 0; begin < bytes; begin += buffer_bytes_) {
      RETURN_IF_ERROR(failed_);
      ++piece_;
      failed_ = waiter_.AwaitRank(kReceiver, piece_ - 2);
      if (failed_.ok()) failed_ = waiter_.CheckAborted();
      RETURN_IF_ERROR(failed_);
      memcpy(Buffer(), static_cast<const char*>(data) + begin, std::min(buffer_bytes_, bytes - begin));
      waiter_.Publish(piece_, static_cast<uint64_t>(bytes));
    }
    return failed_;
  }

  absl::Status Receive(void* data, int64_t bytes) override {
    for (int64_t begin = 0; begin < bytes; begin += buffer_bytes_) {
      RETURN_IF_ERROR(failed_);
      ++piece_;
      failed_ = AwaitPiece(bytes);
      RETURN_IF_ERROR(failed_);
      memcpy(static_cast<char*>(data) + begin, Buffer(), std::min(buffer_bytes_, bytes - begin));
      waiter_.Publish(piece_, static_cast<uint64_t>(bytes));
    }
    return failed_;
  }

  // A piece of the sender's and, in the receiver's own buffer, the reply. As with messages, the receiver
  // stamps a piece once it has read the piece. The sender's stamp says that the sender has read the reply to
  // the piece before.
  absl::Status Exchange(const void* mine, void* theirs, int64_t bytes) override {
    RETURN_IF_ERROR(failed_);
    if (bytes > buffer_bytes_) return absl::InvalidArgumentError("an exchange is larger than the buffer");
    ++piece_;
    const uint64_t call = kExchange | static_cast<uint64_t>(bytes);
    char* const reply = mapping_->Buffer(kReceiver, piece_ % 2);
    if (rank_ == kSender) {
      failed_ = waiter_.AwaitRank(kReceiver, piece_ - 2);
      RETURN_IF_ERROR(failed_);
      memcpy(Buffer(), mine, bytes);
      waiter_.Publish(piece_, call);
    }
    failed_ = AwaitExchange(call);
    RETURN_IF_ERROR(failed_);
    memcpy(theirs, rank_ == kSender ? reply : Buffer(), bytes);
    if (rank_ == kSender) return absl::OkStatus();
    memcpy(reply, mine, bytes);
    waiter_.Publish(piece_, call);
    return absl::OkStatus();
  }

  void Abort(const std::string& reason) override { waiter_.Abort(reason); }
  absl::Status status() const override { return waiter_.Health(); }

 private:
  char* Buffer() const { return mapping_->Buffer(kSender, piece_ % 2); }

  absl::Status AwaitPiece(int64_t bytes) {
    RETURN_IF_ERROR(waiter_.AwaitRank(kSender, piece_));
    RETURN_IF_ERROR(waiter_.CheckAborted());
    const uint64_t sent = waiter_.CallOf(kSender, piece_);
    if (sent == static_cast<uint64_t>(bytes)) return absl::OkStatus();
    const std::string reason = absl::StrCat("the stage before has sent ", sent,
                                            " bytes of hidden states, where ", bytes, " were due");
    waiter_.Abort(reason);
    return absl::InternalError(reason);
  }

  absl::Status AwaitExchange(uint64_t call) {
    const int peer = 1 - rank_;
    RETURN_IF_ERROR(waiter_.AwaitRank(peer, piece_));
    RETURN_IF_ERROR(waiter_.CheckAborted());
    if (waiter_.CallOf(peer, piece_) == call) return absl::OkStatus();
    const std::string reason = "the ends of a link between stages are in different calls";
    waiter_.Abort(reason);
    return absl::InternalError(reason);
  }

  // Marks the call of an exchange; messages have their number of bytes.
  static constexpr uint64_t kExchange = uint64_t{1} << 63;

  const int rank_;
  const int64_t buffer_bytes_;
  const std::unique_ptr<ShmMapping> mapping_;
  ShmWaiter waiter_;    // leaves when destroyed, so before the mapping
  uint32_t piece_ = 0;  // the last piece that this end has sent or received
  absl::Status failed_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StageLink>> MakeShmLink(const GroupOptions& group) {
  RETURN_IF_ERROR(CheckGroupOptions(group, /*max_ranks=*/2));
  if (group.world_size != 2) return absl::InvalidArgumentError("world_size: a link has two ranks");
  const GroupOptions options = WithDefaults(group, absl::Seconds(30), 1 << 20);
  ASSIGN_OR_RETURN(std::unique_ptr<ShmMapping> mapping, MeetInSharedMemory(options));
  return std::make_unique<ShmLink>(options, std::move(mapping));
}

}  // namespace somnus
