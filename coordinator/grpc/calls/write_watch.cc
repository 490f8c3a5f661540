#include "coordinator/grpc/calls/write_watch.h"

#include <optional>
#include <utility>

#include "base/running_clock.h"

namespace somnus {
namespace {

constexpr absl::Duration kLookInterval = absl::Milliseconds(100);

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::ServerRpcInfo;

// The hooks before and after the reply are called on the call's own thread, the second hook when the client
// has taken everything or the call was cancelled.
class ReplyInterceptor : public grpc::experimental::Interceptor {
 public:
  ReplyInterceptor(std::shared_ptr<WriteWatch> watch, ServerRpcInfo* info)
      : watch_(std::move(watch)), info_(info) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE))
      reply_.emplace(watch_.get(), info_->server_context(), nullptr);
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_SEND_MESSAGE)) reply_.reset();
    methods->Proceed();
  }

 private:
  const std::shared_ptr<WriteWatch> watch_;
  ServerRpcInfo* const info_;  // owns this
  std::optional<WriteWatch::Write> reply_;
};

class ReplyInterceptors : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit ReplyInterceptors(std::shared_ptr<WriteWatch> watch) : watch_(std::move(watch)) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    return info->type() == ServerRpcInfo::Type::UNARY ? new ReplyInterceptor(watch_, info) : nullptr;
  }

 private:
  const std::shared_ptr<WriteWatch> watch_;
};

}  // namespace

WriteWatch::WriteWatch(absl::Duration write_timeout) : write_timeout_(write_timeout) {
  thread_ = std::thread([this] {
    while (!stop_.WaitFor(kLookInterval)) Look();
  });
}

WriteWatch::~WriteWatch() {
  stop_.Stop();
  thread_.join();
}

WriteWatch::Write::Write(WriteWatch* watch, const grpc::ServerContextBase* context,
                         const ClientRequest* request)
    : watch_(watch) {
  std::list<Entry> entry;
  entry.push_back(Entry{context, request, RunningNow() + watch->write_timeout_});
  entry_ = entry.begin();
  absl::MutexLock lock(&watch_->mutex_);
  watch_->writes_.splice(watch_->writes_.end(), entry);
}

WriteWatch::Write::~Write() {
  absl::MutexLock lock(&watch_->mutex_);
  watch_->writes_.erase(entry_);
}

bool WriteWatch::Write::cancelled() const {
  absl::MutexLock lock(&watch_->mutex_);
  return entry_->cancelled;
}

bool WriteWatch::Run(const grpc::ServerContext& context, const ClientRequest& request,
                     absl::FunctionRef<bool()> write) {
  const Write entry(this, &context, &request);
  const bool written = write();
  return written && !entry.cancelled();
}

void WriteWatch::Look() {
  const MonotonicTime now = RunningNow();
  absl::MutexLock lock(&mutex_);
  for (Entry& write : writes_) {
    const bool overflowed = write.request != nullptr && write.request->overflowed();
    if (write.cancelled || (now < write.deadline && !overflowed)) continue;
    write.cancelled = true;
    write.context->TryCancel();
  }
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> WatchReplies(
    std::shared_ptr<WriteWatch> watch) {
  return std::make_unique<ReplyInterceptors>(std::move(watch));
}

}  // namespace somnus
