#pragma once
// Writes lines to a descriptor from a thread of its own, so that nobody who logs waits for whoever reads: a
// pipe that is full, a terminal that is stopped (Ctrl-S) or a disk that is full holds up this thread alone.
//
// Lines wait in a queue of at most `max_bytes`. While it is full lines are dropped, and until half of it is
// free again; then a line says how many. Each line is one write, so that the lines of several processes on
// one pipe do not mix (up to PIPE_BUF bytes).
//
//   LogWriter writer(STDERR_FILENO, 1 << 20);
//   writer.Add("a line\n");
//   writer.Flush(absl::Seconds(1));   // before the process ends
//
// Thread safe. Owns its thread; the descriptor is borrowed. The destructor waits for everything to be
// written; an object that lives as long as the process is never destroyed, and ends with it.

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace somnus {

class LogWriter {
 public:
  LogWriter(int fd, int64_t max_bytes);
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;

  // Never waits for the descriptor. `text` ends with its line break.
  void Add(std::string text);
  // Waits until all that was added is written, but no longer than `patience`. It allocates nothing and takes
  // no lock, so that a signal handler may call it. Returns whether all is written.
  bool Flush(absl::Duration patience) const;

  // Lines that were not written, because the queue was full or the descriptor refused them.
  int64_t num_dropped() const { return num_dropped_.load(); }

  // What all of the process' lines go through, and what is printed to stderr, from InitLogging (log.h) on, to
  // the end of the process: an exit waits a second for it, a fault half a second. Null: there is none yet.
  static LogWriter* OfProcess();
  // To be called once. The object is not destroyed any more.
  static void SetOfProcess(LogWriter* writer);

 private:
  struct Line {
    std::string text;
    int64_t num_dropped = 0;  // how many dropped lines it speaks of; 0: it is none of those
  };

  void Run();
  // Returns whether all of the text was written.
  bool Write(const std::string& text) const;
  void NoteRefused(const Line& line);
  // Puts the line that says how many were dropped into the queue.
  void AddNotice() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Push(Line line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int fd_;
  const int64_t max_bytes_;
  absl::Mutex mu_;
  std::deque<Line> queue_ ABSL_GUARDED_BY(mu_);
  int64_t queued_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool dropping_ ABSL_GUARDED_BY(mu_) = false;
  int64_t untold_ ABSL_GUARDED_BY(mu_) = 0;  // dropped lines that no line speaks of yet
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::atomic<int64_t> num_unwritten_{0};  // lines in the queue, and the one that is being written
  std::atomic<int64_t> num_dropped_{0};
  std::thread thread_;
};

}  // namespace somnus
