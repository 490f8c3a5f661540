#include "base/log_writer.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace somnus {
namespace {

// The pause after the descriptor has refused a line (a disk that is full), so that the thread does not spin.
constexpr absl::Duration kRefusedPause = absl::Milliseconds(500);

std::atomic<LogWriter*> g_of_process{nullptr};

std::string DroppedLines(int64_t num_lines) {
  return absl::StrCat(num_lines, num_lines == 1 ? " line was" : " lines were",
                      " dropped here: the log was not read\n");
}

}  // namespace

LogWriter::LogWriter(int fd, int64_t max_bytes, Notice notice)
    : fd_(fd), max_bytes_(max_bytes), notice_(notice ? std::move(notice) : DroppedLines) {
  // The thread blocks all signals: the process' signals go to other threads, and write returns a broken pipe
  // as an error.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

LogWriter::~LogWriter() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
  }
  thread_.join();
}

LogWriter* LogWriter::OfProcess() { return g_of_process.load(); }

void LogWriter::SetOfProcess(LogWriter* writer) { g_of_process.store(writer); }

void LogWriter::Push(Line line) {
  queued_bytes_ += static_cast<int64_t>(line.text.size());
  ++num_unwritten_;
  queue_.push_back(std::move(line));
}

void LogWriter::AddNotice() {
  const int64_t num_lines = std::exchange(untold_, 0);
  Push({notice_(num_lines), num_lines});
}

void LogWriter::Add(std::string text) {
  absl::MutexLock lock(&mu_);
  if (dropping_ && queued_bytes_ <= max_bytes_ / 2) dropping_ = false;
  if (queued_bytes_ + static_cast<int64_t>(text.size()) > max_bytes_) dropping_ = true;
  if (dropping_) {
    ++untold_;
    ++num_dropped_;
    return;
  }
  if (untold_ > 0) AddNotice();
  Push({std::move(text)});
}

void LogWriter::Run() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopped_ || !queue_.empty(); };
  while (true) {
    Line line;
    {
      absl::MutexLock lock(&mu_);
      // The number of dropped lines is told even if no further line comes.
      if (queue_.empty() && untold_ > 0) AddNotice();
      mu_.Await(absl::Condition(&has_work));
      if (queue_.empty()) return;
      line = std::move(queue_.front());
      queue_.pop_front();
      queued_bytes_ -= static_cast<int64_t>(line.text.size());
    }
    const bool written = Write(line.text);
    --num_unwritten_;
    if (!written) NoteRefused(line);
  }
}

void LogWriter::NoteRefused(const Line& line) {
  {
    absl::MutexLock lock(&mu_);
    if (line.num_dropped == 0) ++num_dropped_;
    if (stopped_) return;
    untold_ += std::max<int64_t>(1, line.num_dropped);
  }
  absl::SleepFor(kRefusedPause);
}

bool LogWriter::Write(const std::string& text) const {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = write(fd_, text.data() + done, text.size() - done);
    if (written > 0) done += static_cast<size_t>(written);
    if (written >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN) return false;
    pollfd writable = {fd_, POLLOUT, 0};  // for a descriptor that another process made non-blocking
    poll(&writable, 1, -1);
  }
  return true;
}

bool LogWriter::Flush(absl::Duration patience) const {
  constexpr int64_t kPieces = 500;
  const timespec piece = absl::ToTimespec(patience / kPieces);
  for (int64_t i = 0; num_unwritten_.load() > 0 && i < kPieces; ++i) nanosleep(&piece, nullptr);
  return num_unwritten_.load() == 0;
}

}  // namespace somnus
