#pragma once
// A thread with a stack that a recursion over a hostile grammar does not use up. Where no such thread is
// available the status says so.

#include <pthread.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"

namespace somnus {

class CompileThread {
 public:
  // Address space alone: pages that no recursion reaches cost nothing.
  static constexpr size_t kStackBytes = size_t{256} << 20;

  // ResourceExhausted: no thread is available, and nothing runs.
  static absl::StatusOr<std::unique_ptr<CompileThread>> Start(std::function<void()> body);
  // Waits until `body` has returned.
  ~CompileThread();
  CompileThread(const CompileThread&) = delete;
  CompileThread& operator=(const CompileThread&) = delete;

 private:
  explicit CompileThread(pthread_t thread) : thread_(thread) {}

  const pthread_t thread_;
};

}  // namespace somnus
