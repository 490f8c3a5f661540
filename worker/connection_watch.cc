#include "worker/connection_watch.h"

#include <grpcpp/alarm.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/monotonic.h"

namespace somnus {
namespace {

// While a worker waits for a coordinator nothing is served, and to ask takes some microseconds.
constexpr absl::Duration kProbePause = absl::Milliseconds(5);
constexpr absl::Duration kLostPause = absl::Milliseconds(50);

std::string SocketPath(absl::string_view address) {
  return absl::ConsumePrefix(&address, "unix:") ? std::string(address) : "";
}

bool SomebodyListens(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return false;
  memcpy(address.sun_path, path.data(), path.size());
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) return false;
  const bool listens = connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(probe);
  return listens;
}

class ConnectionWatchImpl : public ConnectionWatch {
 public:
  ConnectionWatchImpl(std::shared_ptr<grpc::Channel> channel, const std::string& address)
      : channel_(std::move(channel)), socket_path_(SocketPath(address)) {}

  ~ConnectionWatchImpl() override {
    channel_.reset();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  void WaitForLoss(absl::Duration time) override {
    if (stop_.stopped()) return;
    if (!watching_) {
      // The connection was lost before anybody watched; but a connection that is lost again and again is not
      // asked for at once.
      if (channel_->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_READY) {
        stop_.WaitFor(std::min(time, kLostPause));
        return;
      }
      channel_->NotifyOnStateChange(GRPC_CHANNEL_READY, gpr_inf_future(GPR_CLOCK_MONOTONIC), &queue_,
                                    &watching_);
      watching_ = true;
    }
    void* tag = nullptr;
    bool ok = false;
    // gRPC turns this into a time of its own monotonic clock at once.
    queue_.AsyncNext(&tag, &ok, absl::ToChronoTime(absl::Now() + time));
    if (tag == &watching_) watching_ = false;
  }

  bool WaitForListener(absl::Duration time) override {
    if (socket_path_.empty()) {
      stop_.WaitFor(time);
      return false;
    }
    const MonotonicTime deadline = MonotonicNow() + time;
    while (!SomebodyListens(socket_path_)) {
      const absl::Duration left = deadline - MonotonicNow();
      if (left <= absl::ZeroDuration() || stop_.WaitFor(std::min(left, kProbePause))) return false;
    }
    grpc::experimental::ChannelResetConnectionBackoff(channel_.get());
    return true;
  }

  void Stop() override {
    stop_.Stop();
    if (!woken_.exchange(true)) wake_.Set(&queue_, gpr_inf_past(GPR_CLOCK_MONOTONIC), &wake_);
  }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  const std::string socket_path_;  // empty for a TCP address
  grpc::CompletionQueue queue_;
  bool watching_ = false;  // the queue will tell when the connection is lost
  StopSignal stop_;
  std::atomic<bool> woken_{false};
  grpc::Alarm wake_;  // set once, which ends a wait for the queue
};

}  // namespace

std::unique_ptr<ConnectionWatch> ConnectionWatch::Create(std::shared_ptr<grpc::Channel> channel,
                                                         const std::string& address) {
  return std::make_unique<ConnectionWatchImpl>(std::move(channel), address);
}

}  // namespace somnus
