#include "coordinator/structured/compile_thread.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

void* RunBody(void* argument) {
  const std::unique_ptr<std::function<void()>> body(static_cast<std::function<void()>*>(argument));
  (*body)();
  return nullptr;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CompileThread>> CompileThread::Start(std::function<void()> body) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  auto argument = std::make_unique<std::function<void()>>(std::move(body));
  pthread_t thread;
  const int error = pthread_create(&thread, &attributes, &RunBody, argument.get());
  pthread_attr_destroy(&attributes);
  if (error != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no thread to compile grammars: ", std::strerror(error)));
  }
  argument.release();
  pthread_setname_np(thread, "grammars");
  return std::unique_ptr<CompileThread>(new CompileThread(thread));
}

CompileThread::~CompileThread() { pthread_join(thread_, nullptr); }

}  // namespace somnus
