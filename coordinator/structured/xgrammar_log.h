#pragma once
// Takes the place of xgrammar's support/logging.h: the build puts this header in front of every source of
// xgrammar (tools/bazel/xgrammar.BUILD), and the first macro keeps the original out. Two things differ. A
// warning is noted for the caller instead of going to the standard error stream, as it says which part of a
// grammar xgrammar ignores. And an error that is being written while an exception passes (an argument of the
// message threw) gives way to the exception, where the original would end the process. The original includes
// <ctime>, <iomanip> and <iostream>, on which sources rely.
#define XGRAMMAR_SUPPORT_LOGGING_H_

#include <ctime>
#include <exception>
#include <iomanip>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>

namespace somnus {

// Notes a warning for the XgrammarWarnings of the calling thread, if there is one.
void NoteXgrammarWarning(const std::string& message);

}  // namespace somnus

namespace xgrammar {

class LogFatalError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A message that ends in an exception. The stream is on the heap: the frames of xgrammar's recursive
// functions have room for all of their checks.
class FatalMessage {
 public:
  ~FatalMessage() noexcept(false) {
    if (std::uncaught_exceptions() == 0) throw LogFatalError(message_->str());
  }
  std::ostream& stream() { return *message_; }

 private:
  std::unique_ptr<std::ostringstream> message_ = std::make_unique<std::ostringstream>();
};

class WarningMessage {
 public:
  ~WarningMessage() noexcept(false) {
    if (std::uncaught_exceptions() == 0) somnus::NoteXgrammarWarning(message_.str());
  }
  std::ostream& stream() { return message_; }

 private:
  std::ostringstream message_;
};

}  // namespace xgrammar

#define XGRAMMAR_LOG_INFO ::xgrammar::WarningMessage().stream()
#define XGRAMMAR_LOG_WARNING ::xgrammar::WarningMessage().stream()
#define XGRAMMAR_LOG_FATAL ::xgrammar::FatalMessage().stream()
#define XGRAMMAR_LOG(level) XGRAMMAR_LOG_##level
#define XGRAMMAR_CHECK(x) \
  if (!(x)) ::xgrammar::FatalMessage().stream() << "Check failed: (" #x << ") is false: "
#define XGRAMMAR_ICHECK(x) \
  if (!(x)) ::xgrammar::FatalMessage().stream() << "Internal check failed: (" #x << ") is false: "
#define XGRAMMAR_DCHECK(x) \
  while (false) XGRAMMAR_ICHECK(x)
