#include "tests/comm/fake_nccl.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace somnus {
namespace {

FakeNccl* g_fake = nullptr;

}  // namespace

// The entry points.
struct FakeNcclEntry {
  static nccl::Result GetVersion(int* version) {
    *version = 22907;
    return g_fake->Called("ncclGetVersion", nullptr);
  }
  static nccl::Result GetUniqueId(nccl::UniqueId* id) {
    std::memset(id->bytes, 7, sizeof(id->bytes));
    return g_fake->Called("ncclGetUniqueId", nullptr);
  }
  static nccl::Result InitRank(nccl::Comm* comm, int, nccl::UniqueId id, int rank, nccl::Config* config) {
    {
      absl::MutexLock lock(&g_fake->mu_);
      *comm = reinterpret_cast<nccl::Comm>(g_fake->next_comm_ += 16);
      g_fake->live_.insert(*comm);
      g_fake->members_[*comm] = {std::string(id.bytes, sizeof(id.bytes)), rank};
      g_fake->last_config_ = *config;
    }
    return g_fake->Called("ncclCommInitRankConfig", *comm);
  }
  static nccl::Result Split(nccl::Comm comm, int, int key, nccl::Comm* made, nccl::Config* config) {
    const nccl::Result answer = g_fake->Called("ncclCommSplit", comm);
    if (answer != nccl::kSuccess && answer != nccl::kInProgress) return answer;
    absl::MutexLock lock(&g_fake->mu_);
    *made = reinterpret_cast<nccl::Comm>(g_fake->next_comm_ += 16);
    g_fake->live_.insert(*made);
    g_fake->members_[*made] = g_fake->members_[comm];
    g_fake->split_config_ = *config;
    g_fake->split_key_ = key;
    return answer;
  }
  static nccl::Result Finalize(nccl::Comm comm) { return g_fake->Called("ncclCommFinalize", comm); }
  static nccl::Result Destroy(nccl::Comm comm) { return End("ncclCommDestroy", comm); }
  static nccl::Result Abort(nccl::Comm comm) { return End("ncclCommAbort", comm); }
  static nccl::Result GetAsyncError(nccl::Comm comm, nccl::Result* error) {
    const nccl::Result answer = g_fake->Called("ncclCommGetAsyncError", comm);
    absl::MutexLock lock(&g_fake->mu_);
    *error = answer == nccl::kSuccess ? g_fake->async_error_ : answer;
    return nccl::kSuccess;
  }
  static const char* ErrorString(nccl::Result result) {
    return result == nccl::kRemoteError ? "remote process exited or there was a network error" : "an error";
  }
  static const char* LastError(nccl::Comm) { return "the reason"; }
  static nccl::Result AllReduce(const void*, void*, size_t count, nccl::ElementType type, nccl::ReduceOp,
                                nccl::Comm comm, nccl::Stream stream) {
    return Collective("ncclAllReduce", count, type, comm, stream);
  }
  static nccl::Result AllGather(const void*, void*, size_t count, nccl::ElementType type, nccl::Comm comm,
                                nccl::Stream stream) {
    return Collective("ncclAllGather", count, type, comm, stream);
  }
  static nccl::Result Send(const void* data, size_t bytes, nccl::ElementType, int to, nccl::Comm comm,
                           nccl::Stream stream) {
    const nccl::Result answer = g_fake->Called("ncclSend", comm);
    if (answer != nccl::kSuccess) return answer;
    absl::MutexLock lock(&g_fake->mu_);
    const FakeNccl::Member& member = g_fake->members_[comm];
    g_fake->messages_[{member.id, member.rank, to}].push_back(
        {g_fake->carrier_.pack(data, bytes, stream), bytes});
    return answer;
  }
  // Waits for the sender's call, as the first message of NCCL's does.
  static nccl::Result Receive(void* data, size_t bytes, nccl::ElementType, int from, nccl::Comm comm,
                              nccl::Stream stream) {
    absl::MutexLock lock(&g_fake->mu_);
    g_fake->Enter("ncclRecv", comm);
    const FakeNccl::Member& member = g_fake->members_[comm];
    std::deque<FakeNccl::Message>& messages = g_fake->messages_[{member.id, from, member.rank}];
    const auto arrived = [&] { return !messages.empty() || g_fake->live_.count(comm) == 0; };
    g_fake->mu_.Await(absl::Condition(&arrived));
    if (g_fake->live_.count(comm) == 0) {
      g_fake->busy_.erase(comm);
      return nccl::kInternalError;
    }
    const FakeNccl::Message message = messages.front();
    messages.pop_front();
    if (message.bytes != bytes) g_fake->violations_.push_back("the ends of a message differ in size");
    g_fake->carrier_.unpack(message.packed.get(), data, std::min(bytes, message.bytes), stream);
    if (g_fake->garbles_) static_cast<char*>(data)[0] ^= 1;
    return g_fake->Leave("ncclRecv", comm);
  }
  static nccl::Result Suspend(nccl::Comm comm, int flags) {
    return flags == nccl::kSuspendMemory ? g_fake->Called("ncclCommSuspend", comm) : nccl::kInvalidArgument;
  }
  static nccl::Result Resume(nccl::Comm comm) { return g_fake->Called("ncclCommResume", comm); }

  static nccl::Result Collective(const char* name, size_t count, nccl::ElementType type, nccl::Comm comm,
                                 nccl::Stream stream) {
    {
      absl::MutexLock lock(&g_fake->mu_);
      g_fake->last_count_ = count;
      g_fake->last_type_ = type;
      g_fake->last_stream_ = stream;
      g_fake->last_comm_ = comm;
    }
    return g_fake->Called(name, comm);
  }
  // Abort may be called while another thread is stuck inside, and frees that thread.
  static nccl::Result End(const char* name, nccl::Comm comm) {
    absl::MutexLock lock(&g_fake->mu_);
    ++g_fake->calls_[name];
    if (g_fake->live_.erase(comm) == 0)
      g_fake->violations_.push_back(std::string(name) + " of no communicator");
    g_fake->held_.clear();
    return nccl::kSuccess;
  }
};

FakeNccl::FakeNccl(bool can_suspend) {
  g_fake = this;
  api_.ncclGetVersion = &FakeNcclEntry::GetVersion;
  api_.ncclGetUniqueId = &FakeNcclEntry::GetUniqueId;
  api_.ncclCommInitRankConfig = &FakeNcclEntry::InitRank;
  api_.ncclCommSplit = &FakeNcclEntry::Split;
  api_.ncclCommFinalize = &FakeNcclEntry::Finalize;
  api_.ncclCommDestroy = &FakeNcclEntry::Destroy;
  api_.ncclCommAbort = &FakeNcclEntry::Abort;
  api_.ncclCommGetAsyncError = &FakeNcclEntry::GetAsyncError;
  api_.ncclGetErrorString = &FakeNcclEntry::ErrorString;
  api_.ncclGetLastError = &FakeNcclEntry::LastError;
  api_.ncclAllReduce = &FakeNcclEntry::AllReduce;
  api_.ncclAllGather = &FakeNcclEntry::AllGather;
  api_.ncclSend = &FakeNcclEntry::Send;
  api_.ncclRecv = &FakeNcclEntry::Receive;
  carrier_.pack = [](const void* data, size_t bytes, nccl::Stream) {
    auto copy = std::make_shared<std::vector<char>>(bytes);
    std::memcpy(copy->data(), data, bytes);
    return std::shared_ptr<void>(copy, copy->data());
  };
  carrier_.unpack = [](void* packed, void* data, size_t bytes, nccl::Stream) {
    std::memcpy(data, packed, bytes);
  };
  if (can_suspend) {
    api_.ncclCommSuspend = &FakeNcclEntry::Suspend;
    api_.ncclCommResume = &FakeNcclEntry::Resume;
  }
  api_.version = can_suspend ? 22907 : 22809;
}

FakeNccl::~FakeNccl() { g_fake = nullptr; }

nccl::Result FakeNccl::Called(const std::string& name, nccl::Comm comm) {
  absl::MutexLock lock(&mu_);
  Enter(name, comm);
  const auto free = [this, &name]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return held_ != name; };
  mu_.Await(absl::Condition(&free));
  return Leave(name, comm);
}

void FakeNccl::Enter(const std::string& name, nccl::Comm comm) {
  ++calls_[name];
  if (comm == nullptr) return;
  if (live_.count(comm) == 0) violations_.push_back(name + " of no communicator");
  if (!busy_.insert(comm).second) violations_.push_back(name + " beside another call");
}

nccl::Result FakeNccl::Leave(const std::string& name, nccl::Comm comm) {
  busy_.erase(comm);
  std::vector<nccl::Result>& answers = answers_[name];
  if (answers.empty()) return nccl::kSuccess;
  const nccl::Result result = answers.front();
  answers.erase(answers.begin());
  return result;
}

void FakeNccl::Answer(const std::string& name, std::vector<nccl::Result> results) {
  absl::MutexLock lock(&mu_);
  answers_[name] = std::move(results);
}
void FakeNccl::SetAsyncError(nccl::Result error) {
  absl::MutexLock lock(&mu_);
  async_error_ = error;
}
void FakeNccl::Hold(const std::string& name) {
  absl::MutexLock lock(&mu_);
  held_ = name;
}
void FakeNccl::SetCarrier(Carrier carrier) {
  absl::MutexLock lock(&mu_);
  carrier_ = std::move(carrier);
}
void FakeNccl::Garble() {
  absl::MutexLock lock(&mu_);
  garbles_ = true;
}
void FakeNccl::Release() {
  absl::MutexLock lock(&mu_);
  held_.clear();
}
int FakeNccl::calls(const std::string& name) const {
  absl::MutexLock lock(&mu_);
  const auto it = calls_.find(name);
  return it == calls_.end() ? 0 : it->second;
}
int FakeNccl::live_comms() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int>(live_.size());
}
size_t FakeNccl::last_count() const {
  absl::MutexLock lock(&mu_);
  return last_count_;
}
nccl::ElementType FakeNccl::last_type() const {
  absl::MutexLock lock(&mu_);
  return last_type_;
}
nccl::Stream FakeNccl::last_stream() const {
  absl::MutexLock lock(&mu_);
  return last_stream_;
}
nccl::Config FakeNccl::last_config() const {
  absl::MutexLock lock(&mu_);
  return last_config_;
}
nccl::Config FakeNccl::split_config() const {
  absl::MutexLock lock(&mu_);
  return split_config_;
}
int FakeNccl::split_key() const {
  absl::MutexLock lock(&mu_);
  return split_key_;
}
bool FakeNccl::last_comm_is_live() const {
  absl::MutexLock lock(&mu_);
  return live_.count(last_comm_) == 1;
}
std::vector<std::string> FakeNccl::violations() const {
  absl::MutexLock lock(&mu_);
  return violations_;
}

}  // namespace somnus
