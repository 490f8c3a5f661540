#pragma once
// A scripted NCCL: returns the results that a test has set, and records every call. Collectives move nothing;
// messages from rank to rank arrive. There is one script in the process, because entry points are plain
// functions. Thread safe. The fake checks NCCL's rules: one thread at a time in a communicator, and no call
// on an ended communicator.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "worker/comm/nccl_api.h"

namespace somnus {

class FakeNccl {
 public:
  // There may be one FakeNccl at a time.
  explicit FakeNccl(bool can_suspend = true);
  ~FakeNccl();

  const NcclApi& api() const { return api_; }

  // The results of the next calls of `name`; kSuccess afterwards.
  void Answer(const std::string& name, std::vector<nccl::Result> results);
  // The report of ncclCommGetAsyncError from now on.
  void SetAsyncError(nccl::Result error);
  // The calls of `name` block until Release, as on a device whose queue is full.
  void Hold(const std::string& name);
  void Release();

  // How a message is moved in the order of a stream: `pack` queues a copy of the bytes, and `unpack` queues
  // the way back on the receiver's stream. By default both copy at once, as where devices compute at once.
  struct Carrier {
    std::function<std::shared_ptr<void>(const void* data, size_t bytes, nccl::Stream stream)> pack;
    std::function<void(void* packed, void* data, size_t bytes, nccl::Stream stream)> unpack;
  };
  void SetCarrier(Carrier carrier);
  // Messages from now on lose their first byte.
  void Garble();

  int calls(const std::string& name) const;
  int live_comms() const;
  // The arguments of the last all-reduce or all-gather.
  size_t last_count() const;
  nccl::ElementType last_type() const;
  nccl::Stream last_stream() const;
  nccl::Config last_config() const;  // of the last communicator that was begun
  // The arguments of the last split.
  nccl::Config split_config() const;
  int split_key() const;
  // True while the communicator of the last collective has not been ended.
  bool last_comm_is_live() const;
  // The violations of NCCL's rules.
  std::vector<std::string> violations() const;

 private:
  friend struct FakeNcclEntry;
  nccl::Result Called(const std::string& name, nccl::Comm comm);
  // A call inside of a communicator has begun, or ended.
  void Enter(const std::string& name, nccl::Comm comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  nccl::Result Leave(const std::string& name, nccl::Comm comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  struct Member {  // of a communicator
    std::string id;
    int rank = 0;
  };
  struct Message {
    std::shared_ptr<void> packed;
    size_t bytes = 0;
  };
  using Way = std::tuple<std::string, int, int>;  // the unique id, the sender, the receiver

  NcclApi api_;
  mutable absl::Mutex mu_;
  std::map<std::string, std::vector<nccl::Result>> answers_;
  std::map<std::string, int> calls_;
  std::set<nccl::Comm> live_, busy_;
  std::map<nccl::Comm, Member> members_;
  std::map<Way, std::deque<Message>> messages_;
  Carrier carrier_;
  bool garbles_ = false;
  std::vector<std::string> violations_;
  nccl::Result async_error_ = nccl::kSuccess;
  std::string held_;
  size_t last_count_ = 0;
  nccl::ElementType last_type_ = nccl::kInt8;
  nccl::Stream last_stream_ = nullptr;
  nccl::Config last_config_, split_config_;
  int split_key_ = -1;
  nccl::Comm last_comm_ = nullptr;
  uintptr_t next_comm_ = 0x1000;
};

}  // namespace somnus
