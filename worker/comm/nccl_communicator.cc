#include "worker/comm/nccl_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/running_clock.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr absl::Duration kFirstPoll = absl::Microseconds(200);
constexpr absl::Duration kSlowestPoll = absl::Milliseconds(5);
// How long Quit waits for a thread that is inside NCCL. Only a thread that queues work on a device with a
// full queue stays there for long, and then only the abort of the hung collective ends that.
constexpr absl::Duration kQuitPatience = absl::Milliseconds(300);

absl::StatusOr<nccl::ElementType> ToElementType(DataType type) {
  switch (type) {
    case DataType::kF32:
      return nccl::kFloat32;
    case DataType::kBF16:
      return nccl::kBfloat16;
    case DataType::kF16:
      return nccl::kFloat16;
    default:
      return absl::InvalidArgumentError("all-reduce: f32, bf16 or f16 is wanted");
  }
}

int64_t SteadyNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

const char* NcclStateName(NcclState state) {
  switch (state) {
    case NcclState::kInitialising:
      return "initialising";
    case NcclState::kReady:
      return "ready";
    case NcclState::kSuspended:
      return "suspended";
    case NcclState::kFailed:
      return "failed";
    case NcclState::kAborted:
      return "aborted";
  }
  return "";
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Start(const NcclApi& api,
                                                                          NcclOptions options) {
  nccl::UniqueId id;
  if (options.unique_id.size() != sizeof(id.bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("nccl_unique_id: ", options.unique_id.size(), " bytes, not ", sizeof(id.bytes)));
  }
  std::memcpy(id.bytes, options.unique_id.data(), sizeof(id.bytes));
  nccl::Config config;
  config.blocking = 0;
  std::unique_ptr<NcclCommunicator> self(new NcclCommunicator(api, std::move(options)));
  nccl::Comm comm = nullptr;
  const nccl::Result result =
      api.ncclCommInitRankConfig(&comm, self->options_.world_size, id, self->options_.rank, &config);
  self->comm_ = comm;
  if (result != nccl::kSuccess && result != nccl::kInProgress) {
    return self->End(NcclState::kFailed, self->ToStatus("ncclCommInitRankConfig", result));
  }
  return self;
}

NcclCommunicator::~NcclCommunicator() {
  if (state() == NcclState::kReady) Leave();
  Quit();
}

// Finalizing waits until the peers' last collectives have drained; for a dead peer the wait would last for
// ever.
void NcclCommunicator::Leave() {
  const nccl::Comm comm = comm_.exchange(nullptr);
  if (comm == nullptr) return;
  StopSignal done;
  nccl::Result result = nccl::kSuccess;
  std::thread finalize([&] {
    result = api_.ncclCommFinalize(comm);
    done.Stop();
  });
  const bool in_time = done.WaitFor(options_.finalize_timeout);
  if (!in_time) api_.ncclCommAbort(comm);  // the call returns then
  finalize.join();
  if (!in_time) return;
  if (result == nccl::kSuccess) {
    api_.ncclCommDestroy(comm);
  } else {
    api_.ncclCommAbort(comm);
  }
}

absl::Status NcclCommunicator::AwaitReady() {
  RETURN_IF_ERROR(Require(NcclState::kInitialising, "AwaitReady"));
  RETURN_IF_ERROR(AwaitProgress("ncclCommInitRankConfig", options_.init_timeout));
  RETURN_IF_ERROR(BecomeBlocking());
  SetState(NcclState::kReady);
  return status();
}

// Splits the whole group off into a blocking communicator.
absl::Status NcclCommunicator::BecomeBlocking() {
  nccl::Config config;
  config.blocking = 1;
  RETURN_IF_ERROR(Call("ncclCommSplit", options_.init_timeout, [&](nccl::Comm comm) {
    return api_.ncclCommSplit(comm, /*color=*/0, /*key=*/options_.rank, &split_, &config);
  }));
  const nccl::Comm forming = comm_.exchange(split_);
  if (forming == nullptr) {  // ended meanwhile
    if (nccl::Comm late = comm_.exchange(nullptr); late != nullptr) api_.ncclCommAbort(late);
    return status();
  }
  Retire(forming);
  return status();
}

// Ends the communicator that the group formed by. All ranks do, and nothing is queued there.
void NcclCommunicator::Retire(nccl::Comm comm) {
  absl::MutexLock lock(&call_mu_);
  const MonotonicTime deadline = RunningNow() + options_.finalize_timeout;
  nccl::Result result = api_.ncclCommFinalize(comm);
  while (result == nccl::kSuccess || result == nccl::kInProgress) {
    result = AsyncError(comm);
    if (result != nccl::kInProgress || RunningNow() >= deadline) break;
    absl::SleepFor(kFirstPoll);
  }
  if (result == nccl::kSuccess) {
    api_.ncclCommDestroy(comm);
  } else {
    api_.ncclCommAbort(comm);
  }
}

absl::Status NcclCommunicator::AllReduceSum(void* data, int64_t count, DataType type) {
  RETURN_IF_ERROR(Require(NcclState::kReady, "ncclAllReduce"));
  ASSIGN_OR_RETURN(const nccl::ElementType element, ToElementType(type));
  return Call("ncclAllReduce", options_.call_timeout, [&](nccl::Comm comm) {
    return api_.ncclAllReduce(data, data, static_cast<size_t>(count), element, nccl::kSum, comm,
                              options_.stream);
  });
}

absl::Status NcclCommunicator::AllGather(const void* in, int64_t bytes, void* out) {
  RETURN_IF_ERROR(Require(NcclState::kReady, "ncclAllGather"));
  return Call("ncclAllGather", options_.call_timeout, [&](nccl::Comm comm) {
    return api_.ncclAllGather(in, out, static_cast<size_t>(bytes), nccl::kInt8, comm, options_.stream);
  });
}

absl::Status NcclCommunicator::Send(const void* data, int64_t bytes, int to) {
  RETURN_IF_ERROR(Require(NcclState::kReady, "ncclSend"));
  return Call("ncclSend", options_.call_timeout, [&](nccl::Comm comm) {
    return api_.ncclSend(data, static_cast<size_t>(bytes), nccl::kInt8, to, comm, options_.stream);
  });
}

absl::Status NcclCommunicator::Receive(void* data, int64_t bytes, int from) {
  RETURN_IF_ERROR(Require(NcclState::kReady, "ncclRecv"));
  return Call("ncclRecv", options_.call_timeout, [&](nccl::Comm comm) {
    return api_.ncclRecv(data, static_cast<size_t>(bytes), nccl::kInt8, from, comm, options_.stream);
  });
}

absl::Status NcclCommunicator::Suspend() {
  if (state() == NcclState::kSuspended) return absl::OkStatus();
  RETURN_IF_ERROR(Require(NcclState::kReady, "ncclCommSuspend"));
  if (api_.ncclCommSuspend == nullptr || api_.ncclCommResume == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(Call("ncclCommSuspend", options_.call_timeout,
                       [this](nccl::Comm comm) { return api_.ncclCommSuspend(comm, nccl::kSuspendMemory); }));
  SetState(NcclState::kSuspended);
  return status();
}

absl::Status NcclCommunicator::Resume() {
  if (state() == NcclState::kReady) return absl::OkStatus();  // this NCCL does not suspend
  RETURN_IF_ERROR(Require(NcclState::kSuspended, "ncclCommResume"));
  RETURN_IF_ERROR(Call("ncclCommResume", options_.call_timeout,
                       [this](nccl::Comm comm) { return api_.ncclCommResume(comm); }));
  SetState(NcclState::kReady);
  return status();
}

void NcclCommunicator::Abort(const std::string& reason) {
  End(NcclState::kAborted, absl::AbortedError(reason)).IgnoreError();
}

absl::Status NcclCommunicator::Poll() {
  if (!call_mu_.TryLock()) return CheckCallUnderWay();
  nccl::Result result = nccl::kSuccess;
  if (nccl::Comm comm = comm_.load(); comm != nullptr) result = AsyncError(comm);
  call_mu_.Unlock();
  if (result != nccl::kSuccess && result != nccl::kInProgress) {
    return End(NcclState::kFailed, ToStatus("NCCL", result));
  }
  return status();
}

// A second thread is inside NCCL, so no other call may be made; but a call that does not return in time is an
// error.
absl::Status NcclCommunicator::CheckCallUnderWay() {
  const int64_t started = call_started_.load();
  const absl::Duration since = absl::Nanoseconds(SteadyNanoseconds() - started);
  if (started == 0 || since < options_.call_timeout) return status();
  return End(NcclState::kFailed, absl::DeadlineExceededError(
                                     absl::StrCat(options_.about, "a call of NCCL has not returned within ",
                                                  absl::FormatDuration(options_.call_timeout))));
}

NcclState NcclCommunicator::state() const {
  absl::MutexLock lock(&mu_);
  return state_;
}

absl::Status NcclCommunicator::status() const {
  absl::MutexLock lock(&mu_);
  return error_;
}

absl::Status NcclCommunicator::Require(NcclState state, const char* call) const {
  absl::MutexLock lock(&mu_);
  if (!error_.ok() || state_ == state) return error_;
  return absl::FailedPreconditionError(
      absl::StrCat(options_.about, call, ": the NCCL communicator is ", NcclStateName(state_)));
}

// Runs a call of NCCL, and waits for the part that the call leaves to the background.
absl::Status NcclCommunicator::Call(const char* name, absl::Duration timeout,
                                    const std::function<nccl::Result(nccl::Comm)>& call) {
  nccl::Result result;
  {
    absl::MutexLock lock(&call_mu_);
    nccl::Comm comm = comm_.load();
    if (comm == nullptr) return status();
    call_started_ = SteadyNanoseconds();
    result = call(comm);
    call_started_ = 0;
  }
  if (result == nccl::kSuccess) return status();
  if (result != nccl::kInProgress) return End(NcclState::kFailed, ToStatus(name, result));
  return AwaitProgress(name, timeout);
}

absl::Status NcclCommunicator::AwaitProgress(const char* name, absl::Duration timeout) {
  const MonotonicTime deadline = RunningNow() + timeout;
  for (absl::Duration pause = kFirstPoll;; pause = std::min(2 * pause, kSlowestPoll)) {
    nccl::Result result;
    {
      absl::MutexLock lock(&call_mu_);
      nccl::Comm comm = comm_.load();
      if (comm == nullptr) return status();
      result = AsyncError(comm);
    }
    if (result == nccl::kSuccess) return status();
    if (result != nccl::kInProgress) return End(NcclState::kFailed, ToStatus(name, result));
    if (options_.health != nullptr) {
      if (absl::Status health = options_.health(); !health.ok()) return End(NcclState::kFailed, health);
    }
    if (RunningNow() >= deadline) {
      return End(NcclState::kFailed,
                 absl::DeadlineExceededError(absl::StrCat(
                     options_.about, name, ": not all ranks came within ", absl::FormatDuration(timeout))));
    }
    absl::SleepFor(pause);
  }
}

nccl::Result NcclCommunicator::AsyncError(nccl::Comm comm) const {
  nccl::Result error = nccl::kSuccess;
  const nccl::Result result = api_.ncclCommGetAsyncError(comm, &error);
  return result == nccl::kSuccess ? error : result;
}

absl::Status NcclCommunicator::ToStatus(const char* name, nccl::Result result) const {
  std::string text = absl::StrCat(options_.about, name, ": ", api_.ncclGetErrorString(result));
  if (const char* last = api_.ncclGetLastError(nullptr); last != nullptr && *last != '\0') {
    absl::StrAppend(&text, " (", last, ")");
  }
  // A network that broke and a peer that is gone look alike.
  const bool remote = result == nccl::kRemoteError || result == nccl::kSystemError;
  return remote ? absl::UnavailableError(text) : absl::InternalError(text);
}

void NcclCommunicator::SetState(NcclState state) {
  absl::MutexLock lock(&mu_);
  if (error_.ok()) state_ = state;
}

// The first cause stays, and is returned.
absl::Status NcclCommunicator::End(NcclState state, const absl::Status& cause) {
  {
    absl::MutexLock lock(&mu_);
    if (!error_.ok()) return error_;
    state_ = state;
    error_ = cause;
  }
  Quit();
  return cause;
}

void NcclCommunicator::Quit() {
  if (comm_.load() == nullptr) return;
  const MonotonicTime deadline = RunningNow() + kQuitPatience;
  bool locked;
  while (!(locked = call_mu_.TryLock()) && RunningNow() < deadline) absl::SleepFor(kFirstPoll);
  // Done without the lock, too: the thread that holds the lock waits for the device, which waits for a rank
  // that does not come, and nothing but this ends that.
  if (nccl::Comm comm = comm_.exchange(nullptr); comm != nullptr) api_.ncclCommAbort(comm);
  if (locked) call_mu_.Unlock();
}

}  // namespace somnus
