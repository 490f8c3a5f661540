#include "worker/comm/process_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <string>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace somnus {
namespace {

// Reads /proc/<pid>/stat. False when there is no such process.
bool ReadStat(int64_t pid, char* state, uint64_t* start_time) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[1024];
  const ssize_t size = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (size <= 0) return false;
  text[size] = '\0';
  // The second field is the name in parentheses, which may hold anything: fields count from the last ')'.
  const char* after = strrchr(text, ')');
  if (after == nullptr) return false;
  unsigned long long start = 0;
  const int fields =
      sscanf(after + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
             state, &start);
  *start_time = start;
  return fields == 2;
}

}  // namespace

uint64_t ProcessStartTime(int64_t pid) {
  char state;
  uint64_t start_time;
  return ReadStat(pid, &state, &start_time) ? start_time : 0;
}

ProcessWatch::ProcessWatch(int64_t pid, uint64_t start_time) : pid_(pid), start_time_(start_time) {
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));
  // The pid may have gone to another process before it was opened; afterwards the descriptor stays with its
  // own.
  if (pidfd_ >= 0 && !Listed()) gone_ = true;
}

ProcessWatch::~ProcessWatch() {
  if (pidfd_ >= 0) close(pidfd_);
}

bool ProcessWatch::Alive() const {
  if (gone_) return false;
  if (pidfd_ < 0) return Listed();
  pollfd poll_fd = {pidfd_, POLLIN, 0};
  return poll(&poll_fd, 1, 0) <= 0;
}

bool ProcessWatch::Listed() const {
  char state;
  uint64_t start_time;
  if (!ReadStat(pid_, &state, &start_time)) return false;
  return start_time == start_time_ && state != 'Z' && state != 'X';
}

}  // namespace somnus
