#include "coordinator/group/load_progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "base/log.h"

namespace somnus {
namespace {

constexpr int kBarWidth = 40;
constexpr absl::Duration kBarInterval = absl::Milliseconds(50);
constexpr absl::Duration kLineInterval = absl::Seconds(2);

double MiB(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

LoadProgress::LoadProgress(std::string log_name)
    : log_name_(std::move(log_name)),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_(MonotonicNow()),
      next_(start_ + (terminal_ ? kBarInterval : kLineInterval)) {}

LoadProgress::~LoadProgress() {
  if (drawn_ && !finished_) std::fputc('\n', stderr);
}

void LoadProgress::Update(int64_t bytes_done, int64_t bytes_total) {
  total_ = bytes_total;
  const MonotonicTime now = MonotonicNow();
  if (finished_ || now < next_ || bytes_total <= 0) return;
  next_ = now + (terminal_ ? kBarInterval : kLineInterval);
  if (terminal_) return Draw(bytes_done, bytes_total);
  LogInfo("{}loading weights: {:.0f} of {:.0f} MiB", log_name_, MiB(bytes_done), MiB(bytes_total));
}

void LoadProgress::Draw(int64_t bytes_done, int64_t bytes_total) {
  const int filled = static_cast<int>(kBarWidth * std::min(1.0, MiB(bytes_done) / MiB(bytes_total)));
  std::fprintf(stderr, "\rloading weights [%s%s] %.0f of %.0f MiB", std::string(filled, '#').c_str(),
               std::string(kBarWidth - filled, ' ').c_str(), MiB(bytes_done), MiB(bytes_total));
  std::fflush(stderr);
  drawn_ = true;
}

void LoadProgress::Finish() {
  if (finished_) return;
  if (drawn_) std::fputs("\r\033[K", stderr);
  finished_ = true;
  LogInfo("{}weights loaded: {:.0f} MiB in {:.2f} s", log_name_, MiB(total_),
          absl::ToDoubleSeconds(MonotonicNow() - start_));
}

}  // namespace somnus
