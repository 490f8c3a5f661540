#include "base/log.h"

#include <signal.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log_writer.h"

namespace somnus {
namespace {

// The longest time for which the end of the process waits until the queued lines are written.
constexpr absl::Duration kExitPatience = absl::Seconds(1);
constexpr absl::Duration kCrashPatience = absl::Milliseconds(500);

// Formats lines, and leaves the writing to the writer.
class WriterSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit WriterSink(LogWriter* writer) : writer_(*writer) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    writer_.Add(std::string(line.data(), line.size()));
  }
  void flush_() override {}

 private:
  LogWriter& writer_;
};

void OnCrash(int signal) {
  (void)LogWriter::OfProcess()->Flush(kCrashPatience);
  ::signal(signal, SIG_DFL);
  raise(signal);  // ends the process once this handler has returned
}

// The last lines before a crash explain the crash best, so the process waits up to kCrashPatience for the
// queue to be written. A handler that a sanitizer has installed stays.
void WriteBeforeCrash() {
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) {
    struct sigaction action = {};
    if (sigaction(signal, nullptr, &action) != 0 || (action.sa_flags & SA_SIGINFO) != 0 ||
        action.sa_handler != SIG_DFL)
      continue;
    action.sa_handler = &OnCrash;
    action.sa_flags = SA_ONSTACK;
    sigaction(signal, &action, nullptr);
  }
}

// Text that is printed to stderr beside the log (a broken invariant, a progress bar, a library's message)
// takes its place among the lines, so that a pipe without a reader holds up no thread that prints.
void LeadStderrTo(LogWriter* writer) {
  const cookie_io_functions_t functions = {
      .read = nullptr,
      .write =
          [](void* cookie, const char* text, size_t size) {
            static_cast<LogWriter*>(cookie)->Add(std::string(text, size));
            return static_cast<ssize_t>(size);
          },
      .seek = nullptr,
      .close = nullptr};
  FILE* const stream = fopencookie(writer, "w", functions);
  if (stream == nullptr) return;
  setvbuf(stream, nullptr, _IONBF, 0);
  stderr = stream;
}

// The writer is never destroyed: threads may log until the process has ended.
LogWriter* StartWriter(int64_t queue_bytes) {
  auto* const writer = new LogWriter(STDERR_FILENO, queue_bytes);
  LogWriter::SetOfProcess(writer);
  LeadStderrTo(writer);
  atexit([] { (void)LogWriter::OfProcess()->Flush(kExitPatience); });
  WriteBeforeCrash();
  return writer;
}

// Text that a client has sent may be part of a line: control characters are escaped, so that no client can
// end a line, or write to an operator's terminal.
std::string OneLine(std::string text) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::none_of(text.begin(), text.end(), is_control)) return text;
  std::string escaped;
  for (const char c : text) {
    if (is_control(static_cast<unsigned char>(c))) {
      absl::StrAppend(&escaped, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    } else {
      escaped += c;
    }
  }
  return escaped;
}

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

void Log(LogLevel level, fmt::string_view format, fmt::format_args args) {
  spdlog::logger* logger = spdlog::default_logger_raw();
  const spdlog::level::level_enum parsed = SpdlogLevel(level);
  if (logger->should_log(parsed)) logger->log(parsed, OneLine(fmt::vformat(format, args)));
}

absl::Status InitLogging(const std::string& process, const std::string& level, int64_t queue_bytes) {
  spdlog::level::level_enum parsed;
  if (level == "debug") {
    parsed = spdlog::level::debug;
  } else if (level == "info") {
    parsed = spdlog::level::info;
  } else if (level == "warning") {
    parsed = spdlog::level::warn;
  } else if (level == "error") {
    parsed = spdlog::level::err;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("log_level: '", level, "' is not one of debug, info, warning, error"));
  }
  auto logger =
      std::make_shared<spdlog::logger>(process, std::make_shared<WriterSink>(StartWriter(queue_bytes)));
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %L [%n] %v");
  logger->set_level(parsed);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

}  // namespace somnus
