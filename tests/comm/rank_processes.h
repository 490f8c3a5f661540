#pragma once
// Runs a function in forked processes, one per rank, like workers.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <vector>

namespace somnus {

// Each child exits with the result of `body(rank)`; 0 is good. Children still alive are killed with the
// object.
class RankProcesses {
 public:
  RankProcesses(int world_size, const std::function<int(int)>& body) {
    for (int r = 0; r < world_size; ++r) {
      const pid_t pid = fork();
      if (pid == 0) _exit(body(r));
      pids_.push_back(pid);
    }
  }
  ~RankProcesses() {
    for (size_t r = 0; r < pids_.size(); ++r) {
      if (pids_[r] > 0) kill(pids_[r], SIGKILL), Wait(static_cast<int>(r));
    }
  }

  // A process that has been waited for has pid -1, which would be every process.
  void Kill(int rank) {
    ASSERT_GT(pids_[rank], 0);
    kill(pids_[rank], SIGKILL);
  }
  pid_t pid(int rank) const { return pids_[rank]; }

  // The exit code; 128 + signal when the child was killed.
  int Wait(int rank) {
    int status = 0;
    waitpid(pids_[rank], &status, 0);
    pids_[rank] = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // True when every rank returned 0.
  bool AllGood() {
    bool good = true;
    for (size_t r = 0; r < pids_.size(); ++r) {
      if (pids_[r] > 0) good &= Wait(static_cast<int>(r)) == 0;
    }
    return good;
  }

 private:
  std::vector<pid_t> pids_;
};

}  // namespace somnus
