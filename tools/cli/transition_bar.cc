#include "tools/cli/transition_bar.h"

#include <stdio.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/bytes_text.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {
namespace {

constexpr double kInterval = 0.1;
constexpr int kMostBar = 40, kDefaultColumns = 80;
constexpr char kEmptyLine[] = "\r\033[K";

// A transition that moves nothing shows only its end.
double Part(int64_t done, int64_t total, bool ended) {
  return total > 0 ? static_cast<double>(done) / static_cast<double>(total) : ended ? 1 : 0;
}

bool HasEnded(absl::string_view phase) { return phase == "committed" || phase == "aborted"; }

// "prepared" and "committed" are phases of ranks that wait: the phases of ranks that still work say more.
bool Works(absl::string_view phase) { return phase != "prepared" && !HasEnded(phase); }

std::string Bar(double part, int width) {
  const int filled = static_cast<int>(part * width);
  return absl::StrCat("[", std::string(filled, '#'), std::string(width - filled, ' '), "]");
}

}  // namespace

bool TransitionLines::IsOld(const v1::WatchTransitionResponse::RankProgress& rank) const {
  const auto old = old_->find({rank.replica(), rank.rank()});
  return old != old_->end() && old->second == rank.progress().prepare_operation_id();
}

std::string TransitionLines::Line(const v1::WatchTransitionResponse& response, int columns) {
  if (!old_.has_value()) {
    old_.emplace();
    for (const auto& rank : response.ranks()) {
      if (HasEnded(rank.progress().phase()))
        (*old_)[{rank.replica(), rank.rank()}] = rank.progress().prepare_operation_id();
    }
  }
  int64_t done = 0, total = 0;
  bool wakes_up = false;
  std::string phase;
  for (const auto& rank : response.ranks()) {
    if (!rank.has_progress() || IsOld(rank)) continue;
    done += rank.progress().bytes_done();
    total += rank.progress().bytes_total();
    wakes_up = rank.progress().wakes_up();
    if (phase.empty() || (!Works(phase) && Works(rank.progress().phase()))) phase = rank.progress().phase();
  }
  if (phase.empty()) return "";
  const double part = Part(done, total, HasEnded(phase));
  const std::string before = wakes_up ? "waking up " : "falling asleep ";
  const std::string after = absl::StrFormat(" %3d%%  %s of %s  %s", static_cast<int>(part * 100),
                                            BytesText(done), BytesText(total), Printable(phase));
  // As wide as before, however long the words are.
  const std::string line = absl::StrCat(before, Bar(part, std::min(columns / 5, kMostBar)), after);
  if (static_cast<int>(line.size()) < columns) return line;
  return absl::StrCat(before, after).substr(0, std::max(0, columns - 1));
}

TransitionBar::TransitionBar(const Server& server, const std::string& model) {
  if (!UnderstandsEscapes(STDERR_FILENO)) return;
  v1::WatchTransitionRequest request;
  request.set_interval_s(kInterval);
  request.set_follow(true);
  request.set_model(model);
  stream_ = std::make_unique<TransitionStream>(
      server, request, [this](const v1::WatchTransitionResponse& response) {
        const std::string line = lines_.Line(response, Columns(STDERR_FILENO, kDefaultColumns));
        if (line.empty()) return;
        fputs(absl::StrCat(kEmptyLine, line).c_str(), stderr);
        drawn_ = true;
      });
}

TransitionBar::~TransitionBar() {
  stream_ = nullptr;
  if (drawn_) fputs(kEmptyLine, stderr);
}

}  // namespace somnus::cli
