#include "coordinator/api/write_watch.h"

#include <utility>

namespace somnus {
namespace {

constexpr absl::Duration kLookInterval = absl::Milliseconds(100);

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

bool WriteWatch::Run(const grpc::ServerContext& context, const ClientRequest& request,
                     absl::FunctionRef<bool()> write) {
  std::list<Entry> entry;
  entry.push_back(Entry{&context, &request, MonotonicNow() + write_timeout_});
  const std::list<Entry>::iterator it = entry.begin();
  {
    absl::MutexLock lock(&mutex_);
    writes_.splice(writes_.end(), entry);
  }
  const bool written = write();
  absl::MutexLock lock(&mutex_);
  const bool cancelled = it->cancelled;
  writes_.erase(it);
  return written && !cancelled;
}

void WriteWatch::Look() {
  const MonotonicTime now = MonotonicNow();
  absl::MutexLock lock(&mutex_);
  for (Entry& write : writes_) {
    if (write.cancelled || (now < write.deadline && !write.request->overflowed())) continue;
    write.cancelled = true;
    write.context->TryCancel();
  }
}

}  // namespace somnus
