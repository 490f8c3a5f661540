#include "tools/cli/top_watcher.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "base/status_macros.h"
#include "tools/cli/control_client.h"

namespace somnus::cli {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(10);

}  // namespace

absl::StatusOr<TopFacts> LookAt(const Server& server, const RequestQuestion& question, std::string model,
                                const TopFacts* before, absl::Duration passed) {
  TopFacts facts;
  facts.url = server.http.Url();
  ASSIGN_OR_RETURN(facts.models, ListModelStatus(server, kCallTimeout));
  if (before != nullptr) {
    facts.before = before->models;
    facts.passed = passed;
  }
  if (model.empty() && facts.models.models_size() > 0) model = facts.models.models(0).model();
  v1::GetStatusRequest request;
  request.set_model(model);
  if (absl::StatusOr<v1::GetStatusResponse> status = GetStatus(server, request, kCallTimeout); status.ok())
    facts.status = *std::move(status);
  absl::StatusOr<RequestList> requests = FetchRequests(server, question);
  if (requests.ok()) {
    facts.requests = *std::move(requests);
  } else {
    facts.error = std::string(requests.status().message());
  }
  return facts;
}

TopWatcher::TopWatcher(Server server, absl::Duration interval, TopFacts first)
    : server_(std::move(server)), interval_(interval), latest_(std::move(first)) {
  if (pipe2(news_, O_CLOEXEC | O_NONBLOCK) != 0) news_[0] = news_[1] = -1;
  thread_ = std::thread([this] { Watch(); });
}

TopWatcher::~TopWatcher() {
  {
    absl::MutexLock lock(&mutex_);
    ends_ = true;
  }
  thread_.join();
  close(news_[0]);
  close(news_[1]);
}

TopFacts TopWatcher::Take() {
  char waste[64];
  while (read(news_[0], waste, sizeof(waste)) > 0) {
  }
  absl::MutexLock lock(&mutex_);
  return latest_;
}

void TopWatcher::Ask(const RequestQuestion& question, const std::string& model) {
  absl::MutexLock lock(&mutex_);
  question_ = question;
  model_ = model;
  is_asked_ = true;
}

void TopWatcher::Watch() {
  MonotonicTime looked = MonotonicNow();
  while (true) {
    TopFacts before;
    RequestQuestion question;
    std::string model;
    {
      absl::MutexLock lock(&mutex_);
      const auto goes_on = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return is_asked_ || ends_; };
      mutex_.AwaitWithTimeout(absl::Condition(&goes_on), interval_);
      if (ends_) return;
      is_asked_ = false;
      before = latest_;
      question = question_;
      model = model_;
    }
    const MonotonicTime now = MonotonicNow();
    absl::StatusOr<TopFacts> facts = LookAt(server_, question, model, &before, now - looked);
    if (facts.ok()) looked = now;
    absl::MutexLock lock(&mutex_);
    if (facts.ok()) {
      latest_ = *std::move(facts);
    } else {
      latest_.error = std::string(facts.status().message());
    }
    if (write(news_[1], "", 1) < 0) continue;  // the pipe is full of earlier news
  }
}

}  // namespace somnus::cli
