#pragma once
// Writes lines to a descriptor from a thread of its own, so that no thread that logs waits for the log's
// reader: a pipe that is full, a terminal that is stopped (Ctrl-S) or a disk that is full holds up the
// writing thread alone.
//
// Lines wait in a queue of at most `max_bytes`. Once the queue is full, lines are dropped until half of the
// queue is free again; then a line tells the number of dropped lines. Each line is a single write, so that
// the lines of several processes on a shared pipe do not mix (up to PIPE_BUF bytes).
//
//   LogWriter writer(STDERR_FILENO, 1 << 20);
//   writer.Add("a line\n");
//   writer.Flush(absl::Seconds(1));   // before the process ends
//
// Thread safe. Owns its thread; the descriptor is borrowed. The destructor waits until all lines are written;
// an object that lives as long as the process is never destroyed, and ends with the process.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace somnus {

class LogWriter {
 public:
  // Makes the line, with its line break, that tells of a number of dropped lines.
  using Notice = std::function<std::string(int64_t num_lines)>;

  // An empty `notice` stands for an English sentence.
  LogWriter(int fd, int64_t max_bytes, Notice notice = nullptr);
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;

  // Never waits for the descriptor. `text` ends with its line break.
  void Add(std::string text);
  // Waits until all added lines are written, but no longer than `patience`. Flush allocates nothing and takes
  // no lock, so that a signal handler may call Flush. Returns whether all is written.
  bool Flush(absl::Duration patience) const;

  // The number of lines that were not written, because the queue was full or the descriptor refused the line.
  int64_t num_dropped() const { return num_dropped_.load(); }

  // The writer of the process' log and of text that is printed to stderr, from InitLogging (log.h) to the end
  // of the process: an exit waits up to a second for the writer, a fault up to half a second. Null before
  // InitLogging.
  static LogWriter* OfProcess();
  // To be called once. The object is not destroyed any more.
  static void SetOfProcess(LogWriter* writer);

 private:
  struct Line {
    std::string text;
    int64_t num_dropped = 0;  // number of dropped lines that this line tells; 0: an ordinary line
  };

  void Run();
  // Returns whether all of the text was written.
  bool Write(const std::string& text) const;
  void NoteRefused(const Line& line);
  // Puts the line with the number of dropped lines into the queue.
  void AddNotice() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Push(Line line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int fd_;
  const int64_t max_bytes_;
  const Notice notice_;
  absl::Mutex mu_;
  std::deque<Line> queue_ ABSL_GUARDED_BY(mu_);
  int64_t queued_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool dropping_ ABSL_GUARDED_BY(mu_) = false;
  int64_t untold_ ABSL_GUARDED_BY(mu_) = 0;  // dropped lines that no line tells yet
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::atomic<int64_t> num_unwritten_{0};  // lines in the queue, and the line that is being written
  std::atomic<int64_t> num_dropped_{0};
  std::thread thread_;
};

}  // namespace somnus
